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
