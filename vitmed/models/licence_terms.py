"""What a licence of public weights demands of whoever uses a model that was made from them."""

from __future__ import annotations

import re

TERMS = (
    # pattern of the licence's name, with the publishers' spellings, and what it demands
    (r".*dinov3.*",
     "DINOv3 License (https://ai.meta.com/resources/models-and-libraries/dinov3-license/): share a model made from "
     "these weights only under this licence and with a copy of it, acknowledge DINOv3 in publications, and do not use "
     "it for military purposes, nuclear industries, espionage or weapons"),
    (r".*(hai-def|health-ai-developer).*",
     "HAI-DEF is provided under and subject to the Health AI Developer Foundations Terms of Use found at "
     "https://developers.google.com/health-ai-developer-foundations/terms: pass its terms and use restrictions on with "
     "a model made from these weights, and get the authorisation of the health authority before clinical use"),
)  # fmt: skip


def terms_of(licence: str | None) -> str | None:
    """The terms, in a sentence without a full stop; None for a licence of which nothing must travel with the model."""
    return next((text for pattern, text in TERMS if re.fullmatch(pattern, (licence or "").lower())), None)


def stops_sharing(licence: str | None) -> str | None:
    """Why a model that was made from weights of a licence is not shared unasked, as a clause; None if nothing stops it.

    ND, "no derivatives", forbids sharing what was adapted (Creative Commons BY-NC-ND 4.0, section 2 a 1 B). A licence
    of the publisher's own may forbid it unless `TERMS` states how to share.
    """
    if licence is None or terms_of(licence) is not None:
        return None
    if "nd" in licence.lower().split("-"):
        return "forbids sharing a model made from them"
    return "may forbid sharing a model made from them" if licence.lower().startswith("licenseref-") else None
