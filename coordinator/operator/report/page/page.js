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
  for (const choice of document.querySelectorAll("select[data-forest]"))
    choice.addEventListener("change", () => {
      const trees = document.getElementById(choice.dataset.forest).children;
      [...trees].forEach((tree, k) => { tree.hidden = k !== Number(choice.value); });
    });
})();
