"""The numbers by name: what each is, and which way is better; and how intervals and tests are computed, in words and
with references: the one place that describes a `method`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

PER_CLASS = ("sensitivity", "specificity", "ppv", "npv", "f1", "auroc", "average_precision")
PROPER = ("Brier", "Cohen", "Hamming", "Pearson")  # names of people, with which titles begin


@dataclass(frozen=True)
class Metric:
    """A number that can choose the best epoch (`train.monitor`) or be a gate (`--fail-under`)."""

    title: str  # in a report
    text: str  # one sentence that defines it
    higher_is_better: bool = True
    ranks: bool = True  # whether more, or less, is always better; otherwise it neither chooses an epoch nor is a gate
    in_unit: bool = False  # whether it has the unit of the predicted number
    way: Literal["area", "share", "sums", "resampled"] = "sums"  # how two models are compared

    @property
    def phrase(self) -> str:
        """The title inside a sentence."""
        return phrase(self.title)


def phrase(title: str) -> str:
    """A title inside a sentence: `macro AUROC`, `mean absolute error`, `Cohen's kappa`."""
    base, _, kind = title.partition(", ")
    proper = base[:2].isupper() or base.startswith(PROPER)
    return f"{kind} {base if proper else base[:1].lower() + base[1:]}".strip()


_error = partial(Metric, higher_is_better=False)
_area, _share, _drawn = (partial(Metric, way=way) for way in ("area", "share", "resampled"))


METRICS: dict[str, Metric] = {
    "accuracy": _share("Accuracy", "Share of images whose class is right."),
    "balanced_accuracy": _share("Balanced accuracy", "Mean over classes of the share found; blind to prevalence."),
    "mcc": _drawn("MCC", "Matthews correlation of truth and prediction, -1 to 1; 0 is chance."),
    "cohen_kappa": _drawn("Cohen's kappa", "Agreement beyond chance, unweighted, -1 to 1; 0 is chance."),
    "log_loss": _drawn("Log loss", "Mean -ln of the probability given to the true class.", higher_is_better=False),
    "brier": _drawn(
        "Brier score",
        "Mean squared error of the probability; more than two classes: summed over them.",
        higher_is_better=False,
    ),
    "auroc": _area("AUROC", "Area under the ROC curve; more than two classes: one against the rest, mean."),
    "auroc_weighted": _area("AUROC, weighted", "AUROC one against the rest, weighted by class size."),
    "average_precision": _area(
        "Average precision", "Precision averaged over recall; more than two classes: one against the rest, mean."
    ),
    "average_precision_weighted": _area(
        "Average precision, weighted", "Average precision one against the rest, weighted by class size."
    ),
    "sensitivity_macro": _share("Sensitivity, macro", "Share of a class that is found, mean over classes."),
    "sensitivity_weighted": _share("Sensitivity, weighted", "The same weighted by class size: the accuracy."),
    "specificity_macro": _drawn("Specificity, macro", "Share of the other classes kept out, mean over classes."),
    "specificity_weighted": _drawn("Specificity, weighted", "The same weighted by class size."),
    "ppv_macro": _drawn("PPV, macro", "Share of a class's predictions that are right, mean over classes."),
    "ppv_weighted": _drawn("PPV, weighted", "The same weighted by class size."),
    "npv_macro": _drawn("NPV, macro", "Share of predictions of other classes that are right, mean over classes."),
    "npv_weighted": _drawn("NPV, weighted", "The same weighted by class size."),
    "f1_macro": _drawn("F1, macro", "Harmonic mean of sensitivity and PPV, mean over classes."),
    "f1_weighted": _drawn("F1, weighted", "The same weighted by class size."),
}
FINDING_METRICS: dict[str, Metric] = {  # of findings: macro is a mean over findings, micro counts every known label
    "auroc": _area("AUROC, macro", "Area under the ROC curve, mean over findings."),
    "auroc_micro": _area("AUROC, micro", "Area under the ROC curve of all labels of all findings together."),
    "average_precision": _area("Average precision, macro", "Precision averaged over recall, mean over findings."),
    "average_precision_micro": _area(
        "Average precision, micro", "Precision averaged over recall, of all labels of all findings together."
    ),
    "balanced_accuracy": Metric(
        "Balanced accuracy, macro", "Mean of sensitivity and specificity, mean over findings; blind to prevalence."
    ),
    "sensitivity_macro": Metric(
        "Sensitivity, macro", "Share of a finding's images that are called, mean over findings."
    ),
    "sensitivity_micro": Metric("Sensitivity, micro", "Share of all findings that are called."),
    "specificity_macro": Metric(
        "Specificity, macro", "Share of the images without a finding in which it is not called, mean over findings."
    ),
    "ppv_macro": Metric("PPV, macro", "Share of a finding's calls that are right, mean over findings."),
    "ppv_micro": Metric("PPV, micro", "Share of all calls that are right."),
    "npv_macro": Metric("NPV, macro", "Share of images not called that lack the finding, mean over findings."),
    "f1_macro": Metric("F1, macro", "Harmonic mean of sensitivity and PPV, mean over findings."),
    "f1_micro": Metric("F1, micro", "Harmonic mean of sensitivity and PPV of all labels of all findings together."),
    "subset_accuracy": _share("Subset accuracy", "Share of images of which every known label is right."),
    "no_finding_specificity": Metric(
        "Specificity without findings", "Share of the images without any known finding in which none is called."
    ),
    "hamming_loss": _error("Hamming loss", "Share of the known labels that are wrong."),
    "log_loss": _error("Log loss", "Mean -ln of the probability given to the truth, over all known labels."),
    "brier": _error("Brier score", "Mean squared error of the probability, over all known labels."),
}
GRADE_METRICS = METRICS | {
    "quadratic_kappa": Metric(
        "Quadratic kappa", "Agreement of the grades beyond chance, by squared distance, -1 to 1; 0 is chance."
    ),
    "linear_kappa": Metric("Linear kappa", "Agreement of the grades beyond chance, by distance, -1 to 1; 0 is chance."),
    "grade_error": _error("Error in grades", "Mean distance of predicted and true grade, in grades."),
}
NUMBER_METRICS: dict[str, Metric] = {
    "mae": _error("Mean absolute error", "Mean distance of predicted and true number.", in_unit=True),
    "rmse": _error("RMSE", "Square root of the mean squared error.", in_unit=True),
    "median_error": _error("Median absolute error", "Half of the images are off by no more than this.", in_unit=True),
    "bias": Metric("Bias", "Mean of predicted minus true number; 0 is best.", ranks=False, in_unit=True),
    "r2": Metric("R2", "Share of the variance of the true numbers that is explained; 0: no better than their mean."),
    "ccc": Metric("Concordance", "Lin's concordance correlation of predicted and true number, -1 to 1; 1 is equality."),
    "pearson": Metric("Pearson's r", "Linear correlation of predicted and true number, -1 to 1; blind to bias."),
    "crps": _error(
        "CRPS",
        "Continuous ranked probability score of the predicted distribution; without a spread the absolute error.",
        in_unit=True,
    ),
    "log_score": _error(
        "Log score",
        "Mean -ln of the predicted density at the true number, both in standard deviations of the training labels.",
    ),
    "coverage": Metric("Coverage", "Share of true numbers inside the prediction interval.", ranks=False),
    "width": Metric("Interval width", "Mean width of the prediction intervals.", ranks=False, in_unit=True),
}


TITLES = {name: metric.title for name, metric in (FINDING_METRICS | GRADE_METRICS | NUMBER_METRICS).items()} | {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "lr_plus": "LR+",
    "lr_minus": "LR-",
    "o_e": "O:E",
    "brier_skill": "Brier skill",
    "ece": "ECE",
}


REFERENCES = {  # key -> the reference, as in a list of references
    "bland-altman": "Bland JM, Altman DG. Agreement between methods of measurement with multiple observations per "
    "individual. J Biopharm Stat. 2007;17:571-582.",
    "bell-mccaffrey": "Bell RM, McCaffrey DF. Bias reduction in standard errors for linear regression with "
    "multi-stage samples. Survey Methodology. 2002;28:169-181.",
    "brocker-smith": "Bröcker J, Smith LA. Increasing the reliability of reliability diagrams. Weather Forecast. "
    "2007;22:651-661.",
    "brier": "Brier GW. Verification of forecasts expressed in terms of probability. Mon Weather Rev. 1950;78:1-3.",
    "cohen": "Cohen J. A coefficient of agreement for nominal scales. Educ Psychol Meas. 1960;20:37-46.",
    "cohen-weighted": "Cohen J. Weighted kappa: nominal scale agreement with provision for scaled disagreement or "
    "partial credit. Psychol Bull. 1968;70:213-220.",
    "cox": "Cox DR. Two further applications of a model for binary regression. Biometrika. 1958;45:562-565.",
    "delong": "DeLong ER, DeLong DM, Clarke-Pearson DL. Comparing the areas under two or more correlated receiver "
    "operating characteristic curves: a nonparametric approach. Biometrics. 1988;44:837-845.",
    "donner-zou": "Donner A, Zou GY. Closed-form confidence intervals for functions of the normal mean and standard "
    "deviation. Stat Methods Med Res. 2012;21:347-359.",
    "efron": "Efron B. The jackknife, the bootstrap and other resampling plans. Philadelphia: SIAM; 1982.",
    "efron-tibshirani": "Efron B, Tibshirani RJ. An introduction to the bootstrap. New York: Chapman & Hall; 1993.",
    "el-yaniv-wiener": "El-Yaniv R, Wiener Y. On the foundations of noise-free selective classification. J Mach Learn "
    "Res. 2010;11:1605-1641.",
    "eliasziw-donner": "Eliasziw M, Donner A. Application of the McNemar test to non-independent matched pair data. "
    "Stat Med. 1991;10:1981-1991.",
    "epstein": "Epstein ES. A scoring system for probability forecasts of ranked categories. J Appl Meteorol. "
    "1969;8:985-987.",
    "field-welsh": "Field CA, Welsh AH. Bootstrapping clustered data. J R Stat Soc B. 2007;69:369-390.",
    "gneiting-raftery": "Gneiting T, Raftery AE. Strictly proper scoring rules, prediction, and estimation. J Am Stat "
    "Assoc. 2007;102:359-378.",
    "gorodkin": "Gorodkin J. Comparing two K-category assignments by a K-category correlation coefficient. Comput Biol "
    "Chem. 2004;28:367-374.",
    "hall": "Hall P. On the removal of skewness by transformation. J R Stat Soc B. 1992;54:221-228.",
    "hanley-mcneil": "Hanley JA, McNeil BJ. The meaning and use of the area under a receiver operating characteristic "
    "(ROC) curve. Radiology. 1982;143:29-36.",
    "hardt": "Hardt M, Price E, Srebro N. Equality of opportunity in supervised learning. Advances in Neural "
    "Information Processing Systems 29; 2016.",
    "hillis": "Hillis SL. A comparison of denominator degrees of freedom methods for multiple observer ROC analysis. "
    "Stat Med. 2007;26:596-619.",
    "hesterberg": "Hesterberg TC. What teachers should know about the bootstrap: resampling in the undergraduate "
    "statistics curriculum. Am Stat. 2015;69:371-386.",
    "liang-zeger": "Liang KY, Zeger SL. Longitudinal data analysis using generalized linear models. Biometrika. "
    "1986;73:13-22.",
    "lin": "Lin LI. A concordance correlation coefficient to evaluate reproducibility. Biometrics. 1989;45:255-268.",
    "mancl-derouen": "Mancl LA, DeRouen TA. A covariance estimator for GEE with improved small-sample properties. "
    "Biometrics. 2001;57:126-134.",
    "mcnemar": "McNemar Q. Note on the sampling error of the difference between correlated proportions or percentages. "
    "Psychometrika. 1947;12:153-157.",
    "newcombe": "Newcombe RG. Confidence intervals for an effect size measure based on the Mann-Whitney statistic. "
    "Part 2: asymptotic methods and evaluation. Stat Med. 2006;25:559-573.",
    "nguyen-oconnor": "Nguyen K, O'Connor B. Posterior calibration and exploratory analysis for natural language "
    "processing models. Proceedings of EMNLP; 2015:1587-1598.",
    "obuchowski": "Obuchowski NA. Nonparametric analysis of clustered ROC curve data. Biometrics. 1997;53:567-578.",
    "obuchowski-rockette": "Obuchowski NA, Rockette HE. Hypothesis testing of diagnostic accuracy for multiple readers "
    "and multiple tests: an ANOVA approach with dependent observations. Commun Stat Simul Comput. 1995;24:285-308.",
    "rao-scott": "Rao JNK, Scott AJ. A simple method for the analysis of clustered binary data. Biometrics. "
    "1992;48:577-585.",
    "satterthwaite": "Satterthwaite FE. An approximate distribution of estimates of variance components. Biometrics "
    "Bull. 1946;2:110-114.",
    "student": "Student. The probable error of a mean. Biometrika. 1908;6:1-25.",
    "tango": "Tango T. Equivalence test and confidence interval for the difference in proportions for the "
    "paired-sample design. Stat Med. 1998;17:891-908.",
    "van-calster": "Van Calster B, McLernon DJ, van Smeden M, Wynants L, Steyerberg EW. Calibration: the Achilles heel "
    "of predictive analytics. BMC Med. 2019;17:230.",
    "vickers-elkin": "Vickers AJ, Elkin EB. Decision curve analysis: a novel method for evaluating prediction models. "
    "Med Decis Making. 2006;26:565-574.",
    "wilson": "Wilson EB. Probable inference, the law of succession, and statistical inference. J Am Stat Assoc. "
    "1927;22:209-212.",
    "woodruff": "Woodruff RS. Confidence intervals for medians and other position measures. J Am Stat Assoc. "
    "1952;47:635-646.",
    "zou-donner": "Zou GY, Donner A. Construction of confidence limits about effect measures: a general approach. Stat "
    "Med. 2008;27:1693-1702.",
}


class Method(NamedTuple):
    """How an interval or a p-value is computed.

    Attributes:
        title: short, for a table or a line.
        text: what fits behind "intervals were computed with"; of a test behind "differences were tested with".
        sources: keys of `REFERENCES`.
    """

    title: str
    text: str
    sources: tuple[str, ...]


METHODS: dict[str, Method] = {  # `method` of an `Estimate`
    "wilson": Method("Wilson", "Wilson's score interval", ("wilson",)),
    "wilson-cluster": Method(
        "Wilson, effective number of images",
        "Wilson's score interval for the effective number of images, derived from the variance between patients, with "
        "Student's t",
        ("wilson", "rao-scott", "bell-mccaffrey", "satterthwaite"),
    ),
    "wilson-bootstrap": Method(
        "Wilson, variance by bootstrap",
        "Wilson's score interval with the variance of bootstrap resamples",
        ("wilson", "efron-tibshirani", "field-welsh"),
    ),
    "delong": Method("DeLong", "DeLong's variance", ("delong",)),
    "obuchowski": Method(
        "Obuchowski",
        "Obuchowski's variance for several images per patient, with Student's t",
        ("obuchowski", "satterthwaite"),
    ),
    "newcombe": Method(
        "Newcombe, method 5",
        "Newcombe's method 5, with effective numbers of images where patients had several",
        ("newcombe", "hanley-mcneil"),
    ),
    "influence": Method(
        "influence of each image",
        "the infinitesimal jackknife, summed over the images of a patient where patients were known",
        ("efron",),
    ),
    "jackknife": Method(
        "jackknife",
        "the jackknife, leaving out each patient in turn where patients were known, else each image, with Student's t",
        ("efron",),
    ),
    "jackknife-hall": Method(
        "jackknife, skewness removed",
        "the jackknife, leaving out each patient in turn where patients were known, else each image, with Student's t "
        "and Hall's correction for the skewness of errors",
        ("efron", "hall"),
    ),
    "woodruff": Method(
        "Woodruff",
        "Woodruff's method, from the interval of the share of images below the median",
        ("woodruff",),
    ),
    "mover": Method(
        "MOVER",
        "the method of variance estimates recovery (MOVER), from the intervals of the numbers that they combine",
        ("zou-donner", "donner-zou"),
    ),
    "bootstrap": Method(
        "bootstrap, widened",
        "the percentile bootstrap, widened where patients or images were few",
        ("efron-tibshirani", "field-welsh", "hesterberg"),
    ),
    "percentile": Method("bootstrap", "the percentile bootstrap", ("efron-tibshirani", "field-welsh")),
    "tango": Method("Tango", "Tango's score interval of paired proportions", ("tango",)),
    "tango-cluster": Method(
        "Tango, effective number of images",
        "Tango's score interval of paired proportions for the effective number of images, with Student's t",
        ("tango", "eliasziw-donner", "satterthwaite"),
    ),
    "sandwich": Method(
        "sandwich variance",
        "the sandwich variance of a logistic regression, clustered by patient where patients were known, corrected for "
        "leverage, with Student's t",
        ("liang-zeger", "mancl-derouen", "satterthwaite"),
    ),
    "obuchowski-rockette": Method(
        "Obuchowski-Rockette",
        "the method of Obuchowski and Rockette for random readers and random patients, with the degrees of freedom "
        "of Hillis",
        ("obuchowski-rockette", "hillis"),
    ),
    "fixed-readers": Method(
        "Obuchowski-Rockette, fixed readers",
        "the method of Obuchowski and Rockette for fixed readers and random patients",
        ("obuchowski-rockette",),
    ),
    "t": Method(
        "Student's t",
        "Student's t, for the mean over patients, or over images where patients were unknown",
        ("student",),
    ),
}
TESTS: dict[str, Method] = {  # `method` of a `ComparisonTest`
    "delong": METHODS["delong"]._replace(text="DeLong's test"),
    "obuchowski": METHODS["obuchowski"]._replace(text="Obuchowski's variance for several images per patient"),
    "influence": METHODS["influence"]._replace(text="the infinitesimal jackknife"),
    "jackknife": METHODS["jackknife"]._replace(text="the jackknife, with Student's t"),
    "mcnemar": Method("McNemar", "McNemar's test without a continuity correction", ("mcnemar",)),
    "mcnemar-cluster": Method(
        "McNemar, effective number of images",
        "McNemar's test for the effective number of images, with Student's t",
        ("mcnemar", "eliasziw-donner", "satterthwaite"),
    ),
}
DEFINITIONS: dict[str, tuple[str, ...]] = {  # a number, by its field -> keys of `REFERENCES` that define it
    "mcc": ("gorodkin",),
    "cohen_kappa": ("cohen",),
    "kappa": ("cohen", "cohen-weighted"),
    "quadratic_kappa": ("cohen-weighted",),
    "linear_kappa": ("cohen-weighted",),
    "rps": ("epstein",),
    "ccc": ("lin",),
    "crps": ("gneiting-raftery",),
    "log_score": ("gneiting-raftery",),
    "lower": ("bland-altman",),
    "brier": ("brier",),
    "ece": ("nguyen-oconnor",),
    "ece_if_right": ("brocker-smith",),
    "intercept": ("cox", "van-calster"),
    "slope": ("cox", "van-calster"),
    "model": ("vickers-elkin",),
    "area": ("el-yaniv-wiener",),
    "equalised_odds": ("hardt",),
}
