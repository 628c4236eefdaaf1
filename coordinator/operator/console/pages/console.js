"use strict";
(() => {
  const now = document.getElementById("now");
  let shown = [];
  const draw = (specs) => {
    for (const plot of shown) plot.finalize();
    shown = [];
    for (const place of now.querySelectorAll("[data-plot]"))
      vegaEmbed(place, specs[place.dataset.plot],
        { renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true } })
        .then((plot) => { shown.push(plot); });
  };
  if (now && document.getElementById("specs")) {
    draw(JSON.parse(document.getElementById("specs").textContent));
    const base = now.dataset.live;
    if (base) {
      let busy = false, again = false;
      const refresh = async () => {
        if (busy) { again = true; return; }
        busy = true;
        try {
          const answer = await fetch(`${base}/live`);
          if (answer.ok) {
            const found = await answer.json();
            const open = [...now.querySelectorAll("figure[id]")].filter((f) => f.querySelector("details[open]")).map((f) => f.id);
            now.innerHTML = found.html;
            for (const id of open) document.getElementById(id)?.querySelector("details")?.setAttribute("open", "");
            draw(found.specs);
          }
        } finally {
          busy = false;
          if (again) { again = false; setTimeout(refresh, 1000); }
        }
      };
      const told = document.getElementById("told");
      const source = new EventSource(`${base}/events`);
      source.addEventListener("change", refresh);
      source.addEventListener("trouble", (event) => { source.close(); told.textContent = JSON.parse(event.data); });
      source.addEventListener("end", () => { source.close(); location.reload(); });
    }
  }
  const again = document.querySelector("[data-refresh]");
  if (again) {
    const refresh = async () => {
      let told = "The console does not answer.";
      try {
        const answer = await fetch(location.href);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = page.querySelector("[data-refresh]");
        told = page.querySelector("[role=alert]")?.textContent || "";
        if (found && answer.ok && again.tagName === "DIV") {
          if (!again.contains(document.activeElement) && !again.querySelector(":checked"))
            again.innerHTML = found.innerHTML;
        } else if (answer.ok) location.reload();
      } catch { /* it says so below */ }
      let stale = document.getElementById("stale");
      if (told && !stale && again.tagName === "DIV") {
        stale = document.createElement("p");
        stale.id = "stale";
        stale.className = "alert";
        stale.setAttribute("role", "status");
        again.before(stale);
      }
      if (stale && told) stale.textContent = `What is below may have changed: ${told}`;
      else stale?.remove();
    };
    setInterval(() => { if (!document.hidden) refresh(); }, 1000 * Number(again.dataset.refresh));
  }
  const text = document.getElementById("job"), keys = document.getElementById("keys");
  if (text && keys) {
    const schema = JSON.parse(document.getElementById("schema").textContent);
    const offer = () => {
      const before = text.value.slice(0, text.selectionStart);
      const line = before.slice(before.lastIndexOf("\n") + 1);
      const table = (before.match(/^\[(\w+)\]/gm) || []).pop();
      const known = schema[table ? table.slice(1, -1) : ""] || [];
      keys.replaceChildren();
      if (!/^\w*$/.test(line)) return;
      for (const key of known.filter((k) => k.startsWith(line) && k !== line).slice(0, 12)) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = key;
        button.addEventListener("click", () => {
          text.setRangeText(`${key} = `, text.selectionStart - line.length, text.selectionStart, "end");
          text.focus();
          offer();
        });
        keys.append(button);
      }
    };
    text.addEventListener("input", offer);
    text.addEventListener("click", offer);
    text.addEventListener("keyup", (event) => { if (event.key.startsWith("Arrow")) offer(); });
  }
})();
