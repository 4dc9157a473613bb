"""Predictions and results to a folder: figures, tables, one HTML page, checklists, model card.

write               `Report`: numbers and figures of predictions, and their folder
analyses            the parts of metrics.json beyond the overall numbers
results             `Results`: all that metrics.json holds, typed
chapters            the chapters of the page and their figures: `SECTIONS`, `PLOTS`; their words are in chapters.yaml
page                report.html, and the limitations
templates           the templates of pages and cards, and the words that they share
methods_text        the statistical methods in words, for a paper: methods.md
markdown            report.md
slider              the numbers behind the threshold slider
headline            the result in the terminal, and quality gates
checklists          CLAIM, TRIPOD+AI and STARD-AI, and what answers their items
model_card          model_card.md, and the card of weights for other libraries
evaluate            a model on images: settings, scores of other images, and the report
run_description     data, model and training in words
participant_flow    where the images come from and where they go
external_data       other images beside the run's own test
rebuild             a report from predictions.csv
data_check_page     the page of `vitmed check`
plots/              the figures
"""
