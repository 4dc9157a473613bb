"""What reaches the screen where messages are gathered, and which warning is the gravest."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from conftest import recording

import vitmed
from vitmed.core.messages import (
    GRAVE,
    REMARK,
    WIDE,
    Once,
    gathering,
    gravest_first,
    is_warning,
    say,
    show,
    warn,
    wrapped,
)

UNKNOWN = "patients are unknown: one patient may be in two splits, which makes results look too good"
LEAK = "the same file in two splits: 47 files (copies_across_splits): a/1.png = a/2.png"
RANDOM = "training starts from random weights: none fit"


def test_only_what_is_shown_and_the_gravest_warning_reach_the_screen() -> None:
    ui = recording()
    ui.verbose = False
    with gathering() as kept:
        say("a detail")
        show("the network")
        for text in (RANDOM, UNKNOWN, LEAK):
            warn(text)
    assert ui.said == ["the network"] and not ui.warned
    assert kept.lines == ["a detail", "the network"] and kept.warnings == [RANDOM, UNKNOWN, LEAK]
    kept.warn_gravest("plan.md")
    assert [" ".join(text.split()) for text in ui.warned] == [f"{LEAK} (2 more warnings: plan.md)"]
    say("after the block")
    assert ui.said[-1] == "after the block"


def test_verbose_shows_every_message_once() -> None:
    ui = recording()
    with gathering() as kept:
        say("a detail")
        warn(UNKNOWN)
        show("the network")
    kept.warn_gravest("plan.md")
    assert ui.said == ["a detail", "the network"] and ui.warned == [UNKNOWN]


def test_a_time_that_is_too_short_is_shown_beside_the_gravest_warning() -> None:
    ui = recording()
    ui.verbose = False
    with gathering() as kept:
        warn("the model will be worse than it could be: --time 4m is enough")
        warn(LEAK)
    kept.warn_gravest("plan.md")
    assert [text.split()[0] for text in ui.warned] == ["the", "the"] and len(ui.warned) == 2


def test_an_error_is_preceded_by_the_warnings_before_it() -> None:
    ui = recording()
    ui.verbose = False
    with pytest.raises(ValueError, match="stop"), gathering():
        warn(UNKNOWN)
        warn(LEAK)
        raise ValueError("stop")
    assert ui.warned == [LEAK, UNKNOWN]


def test_lines_are_no_wider_than_the_screen_and_paths_whole() -> None:
    path = "runs/" + "a-" * 60
    text = f"{LEAK * 4} {path}"
    lines = wrapped(text, "warning: ").splitlines()
    assert all(len(line) <= WIDE for line in lines if path not in line) and len("warning: " + lines[0]) <= WIDE
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_jobs_in_turn_say_each_warning_once() -> None:
    ui = recording()
    ui.verbose = False
    once = Once(ui)
    for job, count in (("fold-1", 47), ("fold-2", 73)):
        once.show("research use only")
        once.warn(f"the same picture in two splits: {count} pictures (near): {job}/1.png")
        once.say(f"epoch 1, {job}")
        once.first = False
    assert ui.warned == ["the same picture in two splits: 47 pictures (near): fold-1/1.png"]
    once.show_counts()
    again = "2 times: the same picture in two splits: 47 pictures (near): fold-1/1.png"
    assert ui.said == ["research use only", "epoch 1, fold-1", "epoch 1, fold-2", again]


def test_leaks_come_before_unknown_patients_pictures_that_look_alike_labels_and_remarks() -> None:
    pooled = "Pooled over 5 models, one for each fold; no file of its test was in its training."
    split = "Split by image: likely optimistic. Patients are unknown. One patient may be in two splits."
    alike = "Data: the same picture in two splits: 47 pictures."
    labels = "Data: the same file under two labels: 1 file."
    few = "There are only 20 images: the intervals are rough."
    order = ["Data: the same file in two splits: 2 files.", split, alike, labels, few, pooled]
    assert gravest_first(reversed(order)) == order
    assert [is_warning(text) for text in order] == [True] * 5 + [False]


def test_a_leak_comes_before_a_model_that_learnt_nothing_and_images_that_chose_the_model() -> None:
    """In the words of the modules that write these sentences."""
    leaks = [
        "Data: the same file in two splits: 47 files.",
        "3 patients in two splits (--allow-leakage): the result is optimistic",
        "run-a: Leakage: 2 of these images have a byte-for-byte copy in another split; the result is optimistic.",
        "Patients that share a name with a patient used to make the model: 4.",
        "fold-2/best.pt: was trained on 3 images of the test of fold-1/best.pt",
    ]
    nothing = (
        "all but 2 were predicted as 'sick': the model does not distinguish the classes, or its threshold is wrong"
    )
    again = "This is the val split, which was used to make the model, so its numbers are optimistic."
    rest = [
        "Data: 4 patients in two splits (guessed from the file names): C96.",
        UNKNOWN,
        "Data: the same picture in two splits: 47 pictures.",
        "Data: the same file under two labels: 1 file.",
        "test: all 15 images of 'Cardiomegaly' come from one patient.",
        "the label can be predicted from size alone, AUROC 0.9",
        RANDOM,
    ]
    for leak in leaks:
        order = [leak, nothing, again, *rest]
        assert gravest_first(reversed(order))[:4] == order[:4] and gravest_first([*rest, leak])[0] == leak
    assert gravest_first([RANDOM, UNKNOWN])[0] == UNKNOWN


def test_numbers_that_say_nothing_come_before_all_that_may_be_too_good() -> None:
    untrained = "The time ended training within its first pass: the network has learned from 8 of 400 images, so these"
    assert gravest_first([UNKNOWN, LEAK, untrained, RANDOM])[0] == untrained


def test_every_word_of_the_ranking_is_one_that_vitmed_writes() -> None:
    """A sentence that is worded anew must not lose its rank."""
    room = Path(vitmed.__file__).parent
    own = room / "core" / "messages.py"
    text = "".join(file.read_text(encoding="utf-8") for file in room.rglob("*.py") if file != own)
    text = re.sub(r'"\n\s*f?"', "", text)
    parts = itertools.chain.from_iterable(words.split("|") for words in (GRAVE[0], *GRAVE[2:], "another split"))
    here = (
        "in two splits",
        "Leakage: ",
        "splits leak",
        "the weights were made with",
        "may be swapped",
    )
    for words in (*parts, *here):
        assert words.lstrip("^") in text, words
    for words in REMARK.pattern.replace("(decides|calls|predicts)", "decides").split("|"):
        assert words.lstrip("^") in text, words


def test_a_percentage_is_not_broken_over_two_lines() -> None:
    text = wrapped("x" * 95 + " 94.1 % of the images")
    assert text.splitlines() == ["x" * 95, "  94.1 % of the images"]
