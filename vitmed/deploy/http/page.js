"use strict";
const answers = document.getElementById("answers"), files = document.getElementById("files");
const drop = document.getElementById("drop"), key = document.getElementById("key");
const SHOWN = 5, MEMBERS = 20, MOST = Number(document.body.dataset.megabytes);
let turn = Promise.resolve();

function make(tag, text, kind, parent) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  if (parent) parent.append(made);
  return made;
}

function percent(p) { return (100 * p).toFixed(1) + " %"; }

function few(names) {
  const more = names.length - MEMBERS;
  return names.slice(0, MEMBERS).join(", ") + (more > 0 ? " and " + more + " more" : "");
}

const number = x => Math.abs(x) >= 9999.5 && Math.abs(x) < 1e15 ? x.toFixed(0) : x.toPrecision(4);

function says(answer) {
  if (typeof answer.prediction === "number") return number(answer.prediction) + (answer.unit ? " " + answer.unit : "");
  if (Array.isArray(answer.prediction)) return answer.prediction.join(", ") || "no finding";
  return answer.prediction + " " + percent(answer.probability);
}

function picture(parent, source, text) {
  const figure = make("figure", "", "", parent), image = make("img", "", "", figure);
  image.src = source;
  image.alt = text;
  make("figcaption", text, "", figure);
}

function show(card, answer) {
  const pictures = make("div", "", "pictures", card), words = make("div", "", "", card);
  if (answer.picture) picture(pictures, answer.picture, "what the network saw");
  if (!answer.answered) make("p", "The model does not answer: " + answer.reason + ".", "refuses", words);
  make("p", (answer.answered ? "" : "It would say: ") + says(answer), answer.answered ? "says" : "", words);
  if (answer.interval) make("p", "Interval " + answer.interval.map(number).join(" to "), "", words);
  if (answer.prediction_set) make("p", "Cannot be excluded: " + (few(answer.prediction_set) || "nothing"), "", words);
  const ranked = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  if (ranked.length) {
    const table = make("table", "", "", words);
    for (const [name, p] of ranked.slice(0, SHOWN)) {
      const row = make("tr", "", "", table);
      make("td", name, "", row);
      make("td", percent(p), "number", row);
      const bar = make("progress", "", "", make("td", "", "", row));
      bar.max = 1;
      bar.value = p;
      bar.ariaLabel = name;
    }
    if (ranked.length > SHOWN) make("p", "and " + (ranked.length - SHOWN) + " less likely", "quiet", words);
  }
  if (answer.note) make("p", "This image " + answer.note + ".", "refuses", words);
  if (answer.ood_score !== null) make("p", "Out-of-distribution score " + answer.ood_score.toFixed(2) + "; above 1 the image is unlike those of training", "quiet", words);
}

async function ask(file) {
  if (file.size > 1e6 * MOST) return { problem: "the file has more than " + MOST + " MB", fix: "send a smaller one" };
  const form = new FormData();
  form.append("images", file);
  try {
    const headers = key ? { Authorization: "Bearer " + key.value } : {};
    const reply = await fetch("v1/predict?pictures=true", { method: "POST", body: form, headers });
    if (reply.status === 401 && key) {
      key.focus();
      return { problem: key.value ? "this is not the key of the server" : "the server needs a key", fix: "type it into the field Key above, and choose the image again" };
    }
    const content = await reply.json();
    return content.images ? content.images[0] : content;
  } catch (error) {
    return { problem: "the server cannot be reached", fix: "is it running?" };
  }
}

async function fill(file, card) {
  const answer = await ask(file);
  card.querySelector(".waits").remove();
  if (answer.problem) make("p", answer.problem + ": " + answer.fix, "refuses", card);
  else show(card, answer);
}

function take(list) {
  const cards = document.createDocumentFragment();
  for (const file of list) {
    const card = make("section", "", "image");
    make("p", file.name, "name", card);
    make("p", "waits for its answer ...", "quiet waits", card);
    cards.append(card);
    turn = turn.then(() => fill(file, card));
  }
  answers.prepend(cards);
}

if (key) key.addEventListener("change", async () => {
  const reply = await fetch("v1/model", { headers: { Authorization: "Bearer " + key.value } }), about = document.getElementById("about");
  if (!reply.ok) return void (about.textContent = "This is not the key of the server.");
  const card = await reply.json();
  about.textContent = "Model " + card.name + ": " + few(card.classes) + (card.decides ? ". " + card.decides : "") + ".";
});

files.addEventListener("change", () => { take(files.files); files.value = ""; });
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, event => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files);
  });
}
