"""Predictions and results to a folder: figures, tables, one HTML page, checklists, model card.

write               the folder of a report
results             `Results`: all that metrics.json holds, typed
analyses            the parts of metrics.json beyond the overall numbers
page                report.html
methods_text        the statistical methods in words, for a paper: methods.md
markdown            report.md
slider              the numbers behind the threshold slider
headline            the result in the terminal, and quality gates
checklists          CLAIM, TRIPOD+AI and STARD-AI, and what answers their items
limitations         what a reader should hold against a report
model_card          model_card.md
evaluate            a model on images: settings, scores of other images, and the report
run_description     data, model and training in words
participant_flow    where the images come from and where they go
external_data       other images beside the run's own test
rebuild             a report from predictions.csv
data_check_page     the page of `vitmed check`
plots/              the figures, and `PLOTS`
"""
