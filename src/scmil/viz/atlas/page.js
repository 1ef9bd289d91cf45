"use strict";
const cards = [...document.querySelectorAll(".atom")];
const find = document.getElementById("find"), only = document.getElementById("only");
const show = () => {
  const words = find.value.toLowerCase().replace(/^atom\s*/, "").split(/\s+/).filter(Boolean);
  let count = 0;
  for (const card of cards) {
    const { atom, words: text } = card.dataset;
    const matches = words.every((word) => /^\d+$/.test(word) ? atom === word : text.includes(word));
    card.hidden = !(matches && (!only || !only.checked || card.dataset.significant === "1"));
    count += card.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = count + " of " + cards.length + " atoms";
  document.getElementById("nothing").hidden = count > 0;
};
find.addEventListener("input", show);
find.form.addEventListener("submit", (event) => event.preventDefault());
if (only) only.addEventListener("change", show);
show();
