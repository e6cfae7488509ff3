// What a page of dtplan report must hold in a browser, in a frame; its findings go to the page around it: "PAGE SCHEME WIDTH: ok".
addEventListener("load", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const findings = window.problems.slice();
  const check = (holds, words) => { if (!holds) findings.push(words); };
  const root = document.documentElement;
  check(root.scrollWidth <= innerWidth, "overflows: " + root.scrollWidth + " of " + innerWidth + " pixels");
  for (const element of document.body.querySelectorAll("*"))
    if (!element.closest(".scroll") && element.getBoundingClientRect().right > innerWidth + 1)
      findings.push("beyond the right edge: " + element.outerHTML.slice(0, 80));
  check(document.querySelectorAll("h1").length === 1, "not one h1");
  check([...document.querySelectorAll("table")].every(table => table.caption && table.caption.textContent), "a table without caption");
  check([...document.querySelectorAll("svg[role=img]")].every(svg => svg.getAttribute("aria-label")), "a drawing without words");
  check([...document.querySelectorAll("nav a")].every(link => document.querySelector(link.getAttribute("href"))), "a link to nowhere");
  check(document.querySelectorAll("figure svg[role=img]").length >= 3, "hardly any charts");
  check(!/NaN|undefined|Infinity|\binf\b/.test([...document.querySelectorAll("svg")].map(svg => svg.outerHTML).join()), "a drawing holds no figures");
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  check(new Set(ids).size === ids.length, "an id twice: " + ids.filter((id, i) => ids.indexOf(id) !== i));
  // Contrast of all text, as WCAG 2 counts it.
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const luminance = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = element => {
    const box = element.closest(".pipeline") && element.previousElementSibling; // what a pass is numbered on
    if (box && box.tagName === "rect") return getComputedStyle(box).fill;
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)" && colour !== "transparent") return colour;
    }
    return "white";
  };
  for (const element of document.body.querySelectorAll("*")) {
    const says = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!says || element.closest("script, title")) continue;
    const style = getComputedStyle(element), ink = luminance(element.closest("svg") ? style.fill : style.color), back = luminance(paper(element));
    const contrast = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    if (contrast < 4.5) findings.push("contrast " + contrast.toFixed(2) + ": " + element.outerHTML.slice(0, 80));
  }
  // Sorting, by click and by keyboard: a button takes both as a click.
  let sorted = 0;
  for (const heading of document.querySelectorAll("thead th.n")) {
    const button = heading.querySelector("button"), body = heading.closest("table").tBodies[0];
    const values = () => [...body.rows].map(row => row.cells[heading.cellIndex].dataset.v).filter(v => v !== undefined).map(Number);
    const rows = body.rows.length, before = values().sort((a, b) => a - b);
    button.focus();
    check(document.activeElement === button, "a heading that cannot be reached");
    button.click();
    check(heading.getAttribute("aria-sort") === "ascending" && String(values()) === String(before), "not sorted: " + heading.textContent);
    button.click();
    check(heading.getAttribute("aria-sort") === "descending" && String(values()) === String(before.reverse()), "not sorted down: " + heading.textContent);
    check(heading.parentElement.querySelectorAll("[aria-sort=none]").length === heading.parentElement.cells.length - 1, "several columns sorted");
    check(body.rows.length === rows, "sorting loses rows");
    sorted++;
  }
  check(sorted >= 5, "hardly any columns to sort");
  for (const field of document.querySelectorAll(".filter input")) {
    const body = document.getElementById(field.dataset.table).tBodies[0], shown = () => [...body.rows].filter(row => !row.hidden).length;
    field.value = "no such words anywhere";
    field.dispatchEvent(new Event("input"));
    check(shown() === 0, "a filter lets all pass");
    field.value = "";
    field.dispatchEvent(new Event("input"));
    check(shown() === body.rows.length, "an empty filter hides rows");
  }
  const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  parent.postMessage(`${location.hash.slice(1)} ${scheme} ${innerWidth}: ${findings.length ? findings.join("\n") : "ok"}`, "*");
});
