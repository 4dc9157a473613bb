"use strict";
// A click on a heading orders the runs by that column, a second one the other way round. The parts of a run stay with it.
(() => {
  const table = document.querySelector("table");
  const headings = [...table.tHead.rows[0].cells];
  // What is not known has no rank and stays last, whichever way round.
  function ordered(rows, column, sign, first) {
    const rank = (row) => row.cells[column].dataset.rank;
    const place = (row) => (rank(row) === "" ? Infinity : sign * Number(rank(row)));
    const placed = rows.map((row) => [place(first(row)), row]);
    return placed.sort((a, b) => (a[0] === b[0] ? 0 : a[0] - b[0])).map((entry) => entry[1]);
  }
  function sort(column) {
    const first = headings[column].dataset.first;
    const again = headings[column].getAttribute("aria-sort") === first;
    const sign = again ? -1 : 1;
    for (const heading of headings) heading.removeAttribute("aria-sort");
    const other = first === "ascending" ? "descending" : "ascending";
    headings[column].setAttribute("aria-sort", again ? other : first);
    const bodies = ordered([...table.tBodies], column, sign, (body) => body.rows[0]);
    for (const body of bodies) {
      body.append(...ordered([...body.rows].slice(1), column, sign, (row) => row));
      table.append(body);
    }
  }
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    if (button) { button.disabled = false; button.addEventListener("click", () => sort(column)); }
  });
})();
