"use strict";
document.documentElement.classList.add("js");
// Sorts a table by the column of a heading; a second time the other way. Figures by their value, cells without one last.
function sort(heading) {
  const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const key = row => {
    const cell = row.cells[column];
    return heading.classList.contains("n") ? (cell.dataset.v === undefined ? NaN : Number(cell.dataset.v)) : cell.textContent.trim();
  };
  const order = (a, b) => {
    if (typeof a === "string") return up ? a.localeCompare(b) : b.localeCompare(a);
    if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
    return up ? a - b : b - a;
  };
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...Array.from(body.rows).map(row => [key(row), row]).sort((a, b) => order(a[0], b[0])).map(pair => pair[1]));
}
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button.closest("th")));
// Hides the rows without the words typed.
for (const field of document.querySelectorAll(".filter input")) field.addEventListener("input", () => {
  const rows = document.getElementById(field.dataset.table).tBodies[0].rows, words = field.value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
    shown += !row.hidden;
  }
  field.parentElement.querySelector("output").textContent = shown + " of " + rows.length + " rows";
});
// Marks what is wider than its place on the screen.
const places = new ResizeObserver(entries => requestAnimationFrame(() => { // the mark itself makes a place higher
  for (const { target } of entries) target.classList.toggle("wide", target.scrollWidth > target.clientWidth);
}));
for (const place of document.querySelectorAll(".scroll")) places.observe(place);
// On paper nothing is folded away but the figures that a chart shows already.
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("section > details")) details.open = true; });
