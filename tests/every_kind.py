"""The generic functions of `vitmed.metrics.kinds.prepared`, for predictions of one kind of label."""

from functools import partial

from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import PreparedFindings
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.kinds.number import PreparedNumbers
from vitmed.metrics.kinds.prepared import compare, drawn_values, epoch_values, evaluate

compare_predictions = partial(compare, PreparedPredictions)
evaluate_findings = partial(evaluate, PreparedFindings)
compare_findings = partial(compare, PreparedFindings)
finding_values = partial(epoch_values, PreparedFindings)
drawn_findings = partial(drawn_values, PreparedFindings)
evaluate_grades = partial(evaluate, PreparedGrades)
compare_grades = partial(compare, PreparedGrades)
grade_values = partial(epoch_values, PreparedGrades)
compare_numbers = partial(compare, PreparedNumbers)
number_values = partial(epoch_values, PreparedNumbers)
drawn_numbers = partial(drawn_values, PreparedNumbers)
