"use strict";
// A click on the name of a column sorts its table; the box hides rows and places without its text. The page is whole without this.
(() => {
  const number = (text) => {
    const found = /-?\d+(\.\d+)?/.exec(text.replace(/,(?=\d{3})/g, ""));
    return found ? parseFloat(found[0]) : -Infinity;
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent) return;
      const text = (row) => row.cells[column].textContent;
      const compare = head.classList.contains("n")
        ? (one, other) => number(text(one)) - number(text(other))
        : (one, other) => text(one).localeCompare(text(other), "en", { numeric: true });
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const descends = head.getAttribute("aria-sort") === "ascending";
        for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descends ? "descending" : "ascending");
        const rows = [...body.rows].sort(compare);
        body.append(...(descends ? rows.reverse() : rows));
      });
      head.replaceChildren(button);
    });
  }
  const label = document.createElement("label");
  label.className = "filter";
  label.append("Show only rows with ");
  const box = document.createElement("input");
  box.type = "search";
  label.append(box);
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLowerCase();
    for (const row of document.querySelectorAll("tbody > tr, .place")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
  document.querySelector("h1").after(label);
})();
