from vitmed.core.base_models import Frozen


class CoOccurrence(Frozen):
    findings: list[str]
    truth: list[list[int]]


def co_occurrence(p):
    y = (p.labels == 1).astype(int)
    return CoOccurrence(findings=list(p.classes), truth=(y.T @ y).tolist())
