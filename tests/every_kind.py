"""The generic methods of `vitmed.metrics.kinds.prepared`, for predictions of one kind of label."""

from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import PreparedFindings
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.kinds.number import PreparedNumbers

compare_predictions = PreparedPredictions.compare
evaluate_findings = PreparedFindings.evaluate
compare_findings = PreparedFindings.compare
finding_values = PreparedFindings.values
drawn_findings = PreparedFindings.draw
evaluate_grades = PreparedGrades.evaluate
compare_grades = PreparedGrades.compare
grade_values = PreparedGrades.values
compare_numbers = PreparedNumbers.compare
number_values = PreparedNumbers.values
drawn_numbers = PreparedNumbers.draw
