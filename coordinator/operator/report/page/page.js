"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const drawn = [...document.querySelectorAll("[data-plot]")].map((place) =>
    vegaEmbed(place, specs[place.dataset.plot], { renderer: "svg", actions: false })
      .then((plot) => {
        // A viewBox lets the page and the printer scale the drawing.
        const svg = place.querySelector("svg");
        if (!svg.hasAttribute("viewBox"))
          svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
        return plot;
      }));
  Promise.all(drawn).then((plots) => {
    document.documentElement.dataset.drawn = String(plots.length);
  });
  const cuts = JSON.parse(document.getElementById("thresholds").textContent);
  for (const place of document.querySelectorAll("[data-thresholds]")) {
    const all = cuts[place.dataset.thresholds].series;
    const range = place.querySelector("input");
    const choice = place.querySelector("select");
    const cells = [...place.querySelectorAll("tbody td")];
    const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "not defined");
    const show = () => {
      const one = all[choice ? Number(choice.value) : 0];
      const [left, taken, missed, found] = one.cells[Number(range.value)];
      place.querySelector("output").textContent = one.cuts[Number(range.value)].toFixed(3);
      [left, taken, missed, found].forEach((n, k) => { cells[k].textContent = n.toLocaleString("en"); });
      for (const kind of ["own", "other"])
        for (const word of place.querySelectorAll(`.${kind}`)) word.textContent = one[kind];
      place.querySelector(".rates").textContent =
        `accuracy ${percent(left + found, left + taken + missed + found)} · ` +
        `precision ${percent(found, found + taken)} · recall ${percent(found, found + missed)} · ` +
        `specificity ${percent(left, left + taken)}`;
    };
    const choose = () => {
      const one = all[Number(choice.value)];
      range.max = String(one.cuts.length - 1);
      range.value = String(one.start);
      show();
    };
    range.addEventListener("input", show);
    if (choice) choice.addEventListener("change", choose);
    show();
  }
  for (const choice of document.querySelectorAll("select[data-forest]"))
    choice.addEventListener("change", () => {
      const trees = document.getElementById(choice.dataset.forest).children;
      [...trees].forEach((tree, k) => { tree.hidden = k !== Number(choice.value); });
    });
})();
