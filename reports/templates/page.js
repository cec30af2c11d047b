"use strict";
// Sorting, filtering, and everything open when printed. The page reads the same without this.

const textOf = (cell) => cell.dataset.value ?? cell.textContent.trim();

function compare(left, right) {
  const numbers = [Number(left), Number(right)];
  if (left !== "" && right !== "" && numbers.every(Number.isFinite)) return numbers[0] - numbers[1];
  if (left === "" || right === "") return (left === "") - (right === "");
  return left.localeCompare(right, "en", { numeric: true });
}

// Rows with a data-tier never cross into another tier, whatever they are sorted by.
function sortRows(table, column, sign) {
  const body = table.tBodies[0];
  const key = (row) => textOf(row.cells[column]);
  const rows = [...body.rows].sort((a, b) => {
    const tiers = (a.dataset.tier ?? 0) - (b.dataset.tier ?? 0);
    const empty = (key(a) === "") - (key(b) === "");
    return tiers || empty || sign * compare(key(a), key(b));
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      sortRows(table, column, sign);
    });
  });
}

for (const table of document.querySelectorAll("table.filterable")) {
  const rows = [...table.querySelectorAll("tbody tr:not(.suite)")];
  if (rows.length < 8) continue;
  const box = document.createElement("input");
  box.type = "search";
  box.className = "filter";
  box.placeholder = `Filter ${rows.length} rows`;
  box.setAttribute("aria-label", `Filter: ${table.caption?.textContent ?? "table"}`);
  box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
  });
  table.parentElement.before(box);
}

// A long timeline opens where it goes wrong.
for (const ring of document.querySelectorAll("svg.timeline .ring")) {
  const view = ring.closest(".scroll");
  const past = ring.getBoundingClientRect().right - view.getBoundingClientRect().right;
  if (past > 0 && view.scrollLeft === 0) view.scrollLeft = past + view.clientWidth / 2;
}

addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    part.open = true;
    part.dataset.closed = "";
  }
});
addEventListener("afterprint", () => {
  for (const part of document.querySelectorAll("details[data-closed]")) {
    part.open = false;
    delete part.dataset.closed;
  }
});
