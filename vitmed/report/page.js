"use strict";
// A link into a folded chapter opens it, and printing opens all; current browsers do the first by themselves.
(() => {
  function reveal(hash) {
    const target = hash && document.getElementById(hash.slice(1));
    for (let fold = target; (fold = fold && fold.closest("details:not([open])")); ) fold.open = true;
    if (target) target.scrollIntoView();
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) reveal(link.hash);
  });
  window.addEventListener("hashchange", () => reveal(location.hash));
  reveal(location.hash);
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  window.addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });
})();
// What scrolls sideways can be reached by keyboard.
(() => {
  const tables = document.querySelectorAll(".scroll");
  function reach() {
    for (const table of tables) {
      if (table.scrollWidth > table.clientWidth) {
        table.tabIndex = 0;
        table.setAttribute("role", "region");
        table.setAttribute("aria-label", "scrolls sideways");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) table.removeAttribute(name);
      }
    }
  }
  reach();
  window.addEventListener("resize", reach);
})();
// The threshold slider: looks up counts and divides.
(() => {
  const holder = document.getElementById("slider-data");
  if (!holder) return;
  const curve = JSON.parse(holder.textContent);
  const at = (name) => document.getElementById("slider-" + name);
  const [threshold, prevalence] = [at("threshold"), at("prevalence")];

  // Three digits; what lies exactly between two goes to the even one, as everywhere else in the report.
  const number = (x) =>
    x === null ? "undefined" : (Math.abs((x * 16) % 2) === 1 ? (2 * Math.round(x * 500)) / 1000 : x).toFixed(3);
  const count = (n) => n.toLocaleString("en-GB");
  const share = (top, bottom) => (bottom > 0 ? top / bottom : null);
  const write = (name, text) => { at(name).textContent = text; };
  const usual = () => curve.positives / (curve.positives + curve.negatives);

  function show() {
    const i = Number(threshold.value);
    const [tp, fp, P, N] = [curve.tp[i], curve.fp[i], curve.positives, curve.negatives];
    const typed = prevalence.valueAsNumber;
    const valid = prevalence.dataset.usual === "yes" || (typed >= 0 && typed <= 100);
    const p = prevalence.dataset.usual === "yes" ? usual() : typed / 100;
    const [sensitivity, specificity] = [tp / P, (N - fp) / N];
    const [right, wrong] = [sensitivity * p, (1 - specificity) * (1 - p)];
    const [kept, missed] = [specificity * (1 - p), (1 - sensitivity) * p];
    const t = curve.thresholds[i];
    const shown = t >= 0.0005 && t < 0.9995 ? number(t) : String(Number(t.toPrecision(3)));
    write("value", shown);
    threshold.setAttribute("aria-valuetext", shown);
    prevalence.setAttribute("aria-invalid", String(!valid));
    write("tp", count(tp));
    write("fn", count(P - tp));
    write("fp", count(fp));
    write("tn", count(N - fp));
    write("sensitivity", number(sensitivity));
    write("specificity", number(specificity));
    write("ppv", valid ? number(share(right, right + wrong)) : "undefined");
    write("npv", valid ? number(share(kept, kept + missed)) : "undefined");
    for (const button of at("marks").children) {
      button.setAttribute("aria-pressed", String(Number(button.value) === i));
    }
  }

  function mark(text, index) {
    const button = document.createElement("button");
    button.type = "button";
    button.value = index;
    button.textContent = text;
    button.addEventListener("click", () => { threshold.value = index; show(); });
    return button;
  }

  function asUsual() {
    prevalence.value = Number((100 * usual()).toPrecision(4));
    prevalence.dataset.usual = "yes"; // exactly that of these images, however it is rounded for the eye
    show();
  }

  threshold.addEventListener("input", show);
  prevalence.addEventListener("input", () => { prevalence.dataset.usual = "no"; show(); });
  at("usual").addEventListener("click", asUsual);
  at("marks").replaceChildren(mark(curve.decided ? "the one in use" : "0.5", curve.start), ...curve.marks.map(([text, i]) => mark(text, i)));
  at("controls").hidden = false;
  asUsual();
})();
