"""Predictions and results to a folder: figures, tables, one HTML page, checklists, model card.

write               `Report`: numbers and figures of predictions, chapters as blocks, folder, `--format paper`
analyses            the parts of metrics.json beyond the overall numbers, other images beside the run's own test
results             `Results`: all that metrics.json holds, typed
chapters            the chapters (words: chapters.yaml), their figures, report.html, limitations; the checklists
blocks              text, table, first numbers, figure; drawn as HTML, as Markdown (report.md) and in the terminal
templates           the templates of pages and cards, the words that they share
methods_text        the statistical methods in words, for a paper: methods.md
headline            the result in the terminal, and quality gates
model_card          model_card.md, and the card of weights for other libraries
evaluate            a model on images: settings, facts, scores of other images, the report; or made again from its table
participant_flow    where the images come from and where they go, and the figure of it
data_check_page     the page of `vitmed check`
plots/              the figures
"""
