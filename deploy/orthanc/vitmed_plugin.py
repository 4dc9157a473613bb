"""Orthanc plugin: each new image goes to `vitmed serve`, and the Structured Report that comes back is stored beside it.

The queue is Orthanc's own log of changes. Orthanc's database holds the number of the last change that is worked off
(`CURSOR`), so whatever is killed, the plugin goes on there. A report has the same SOP Instance UID whenever the same
model makes it of the same image: Orthanc keeps one. docs/orthanc.md explains the settings.
"""

import contextlib
import http.client
import json
import os
import secrets
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import orthanc

CURSOR = 4200  # global property of Orthanc: every change up to this one is worked off
MARK = "4200"  # metadata of an image: "report ID", "refused ..." or "failed ..."
PAGE = 100  # changes read at once
ATTEMPTS = 10  # for one image, while vitmed is ready: one that makes it fail must not hold up the others
REFUSED = (413, 415, 422)  # what vitmed answers where the image is the problem
UNKNOWN = 17  # error of Orthanc: there is no such resource (any more)
SETTINGS = {
    "Url": "http://127.0.0.1:8000",
    "Key": os.environ.get("VITMED_API_KEY", ""),
    "Only": {},  # DICOM keyword -> the values that the model is for
    "SendTo": "",  # "modalities/NAME" or "peers/NAME" of orthanc.json: where reports are sent too
    "Connections": 4,
    "Timeout": 90,  # s
    "LongestPause": 60,  # s between two attempts
}
given = json.loads(orthanc.GetConfiguration()).get("Vitmed", {})
settings = {**SETTINGS, **given}
if set(given) - set(SETTINGS):
    raise ValueError(f"Vitmed in orthanc.json: {sorted(set(given) - set(SETTINGS))}, expected {sorted(SETTINGS)}")
if not settings["Only"].get("Modality") or not all(isinstance(one, list) for one in settings["Only"].values()):
    raise ValueError('Vitmed.Only in orthanc.json: expected what the model is for: {"Modality": ["DX", "CR"]}')
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # images never go to a proxy
stopping, news = threading.Event(), threading.Event()
state = {"since": None, "problem": ""}  # what GET /vitmed shows; None before Orthanc has started
asked = []  # by POST /vitmed: the change to begin again after


class Away(Exception):
    """vitmed, or the destination of the reports, takes no image at all now."""


def ask(path, image=None):
    """The status and the body of an answer of vitmed: on a DICOM file a Structured Report, or the problem."""
    headers, form, line = {}, None, secrets.token_hex(16)
    if settings["Key"]:
        headers["Authorization"] = f"Bearer {settings['Key']}"
    if image is not None:
        head = f'--{line}\r\nContent-Disposition: form-data; name="images"; filename="image.dcm"\r\n\r\n'
        form = head.encode() + image + f"\r\n--{line}--\r\n".encode()
        headers |= {"Content-Type": f"multipart/form-data; boundary={line}", "Accept": "application/dicom"}
    request = urllib.request.Request(settings["Url"].rstrip("/") + path, form, headers)
    try:
        with opener.open(request, timeout=settings["Timeout"]) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def send(report):
    """Send a report on. Raises Away where its destination does not answer."""
    to = "/" + settings["SendTo"].strip("/")
    try:
        orthanc.RestApiPost(f"{to}/store", report)
    except orthanc.OrthancException:
        try:
            orthanc.RestApiGet(f"{to}/system") if to.startswith("/peers") else orthanc.RestApiPost(f"{to}/echo", "{}")
        except orthanc.OrthancException:
            raise Away(f"{to} does not answer") from None
        raise RuntimeError(f"report {report} is stored here, but {to} does not take it") from None


def answer(instance):
    """What became of an image; None if it is not one for the model."""
    tags = json.loads(orthanc.RestApiGet(f"/instances/{instance}/simplified-tags"))
    wanted = all(tags.get(keyword) in values for keyword, values in settings["Only"].items())
    if not wanted or "Rows" not in tags or tags.get("Modality") == "SR":
        return None
    status, body = ask("/v1/predict", orthanc.RestApiGet(f"/instances/{instance}/file"))
    if status == 200:
        report = json.loads(orthanc.RestApiPost("/instances", body))["ID"]
        if settings["SendTo"]:
            send(report)
        return f"report {report}"
    try:
        told = "{problem}; {fix}".format(**json.loads(body))
    except (ValueError, LookupError, TypeError):
        told = "no vitmed answers there"
    told = "".join(c if c.isprintable() else "?" for c in told)  # it may quote the image, and Orthanc takes no NUL
    if status in REFUSED:
        return f"refused {status}: {told}"
    raise (Away if status < 500 and status != 408 else RuntimeError)(f"vitmed answers {status}: {told}")


def work_off(instance):
    """Return once an image has its report, is refused, or was tried too often; also when Orthanc stops."""
    pause, failures = 1, 0
    while not stopping.is_set():
        try:
            became = answer(instance)
        except Exception as error:
            if isinstance(error, orthanc.OrthancException) and error.args[0] == UNKNOWN:  # deleted meanwhile
                return
            with contextlib.suppress(OSError, http.client.HTTPException):
                failures += not isinstance(error, Away) and ask("/health/ready")[0] == 200
            if failures < ATTEMPTS:
                problem = f"{error or type(error).__name__}"
                if state["problem"] != problem:
                    state["problem"] = problem
                    orthanc.LogWarning(f"vitmed: {problem}; trying again")
                stopping.wait(min(pause, settings["LongestPause"]))
                pause *= 2
                continue
            became = f"failed {error}"
        state["problem"] = ""
        if became:
            try:
                orthanc.RestApiPut(f"/instances/{instance}/metadata/{MARK}", became)
            except orthanc.OrthancException as error:  # such as CheckRevisions: nobody may change an earlier note
                orthanc.LogWarning(f"vitmed: instance {instance} cannot be marked: {error}")
            if not became.startswith("report"):
                orthanc.LogWarning(f"vitmed: instance {instance} {became}")
        return


def work():
    """Work off the log of changes until Orthanc stops."""
    with ThreadPoolExecutor(settings["Connections"]) as pool:
        while not stopping.is_set():
            news.clear()
            try:
                if asked:
                    state["since"] = asked.pop()
                page = json.loads(orthanc.RestApiGet(f"/changes?since={state['since']}&limit={PAGE}"))["Changes"]
                list(pool.map(work_off, [one["ID"] for one in page if one["ChangeType"] == "NewInstance"]))
                if not stopping.is_set():
                    state["since"] = page[-1]["Seq"] if page else state["since"]
                    orthanc.SetGlobalProperty(CURSOR, str(state["since"]))
                    state["problem"] = ""
                if page:
                    continue
            except Exception as error:
                state["problem"] = f"{error or type(error).__name__}"
                orthanc.LogError(f"vitmed: {state['problem']}; trying again")
            news.wait(settings["LongestPause"])


worker = threading.Thread(target=work)


def on_change(change, level, resource):
    if change == orthanc.ChangeType.ORTHANC_STARTED:
        last = json.loads(orthanc.RestApiGet("/changes?last"))["Last"]
        state["since"] = int(orthanc.GetGlobalProperty(CURSOR, str(last)))  # at first: images that come from now on
        worker.start()
    elif change == orthanc.ChangeType.NEW_INSTANCE:
        news.set()
    elif change == orthanc.ChangeType.ORTHANC_STOPPED and worker.is_alive():
        stopping.set()
        news.set()
        worker.join()


def on_request(output, uri, **request):
    """GET /vitmed: how far the plugin is. POST /vitmed, body N: begin again after change N (0: all images)."""
    last = json.loads(orthanc.RestApiGet("/changes?last"))["Last"]
    if request["method"] == "POST":
        asked.append(min(int(request["body"] or 0), last))
        news.set()
    output.AnswerBuffer(json.dumps({**state, "last": last}), "application/json")


orthanc.RegisterOnChangeCallback(on_change)
orthanc.RegisterRestCallback("/vitmed", on_request)
