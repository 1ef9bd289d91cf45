// The highest and the lowest tiles of the slide by the score that is shown, for each model.

import { tilePicture } from "./api.js";
import { nameOf, said } from "./scale.js";

const section = document.querySelector("#gallery");
const EACH = 12;

function thumb(pane, tile, onTile) {
  const button = document.createElement("button");
  button.className = "thumb";
  button.type = "button";
  button.dataset.tile = tile;
  const picture = document.createElement("img");
  Object.assign(picture, { src: tilePicture(pane.slide, pane.model, tile), alt: `tile ${tile}`, loading: "lazy" });
  button.append(picture, said(pane.scale.values[tile]));
  button.addEventListener("click", () => onTile(pane, tile));
  return button;
}

function row(title, pane, tiles, onTile) {
  const heading = document.createElement("h3");
  heading.textContent = title;
  const line = document.createElement("div");
  line.className = "row";
  line.append(...tiles.map((tile) => thumb(pane, tile, onTile)));
  return [heading, line];
}

export function drawGallery(panes, names, onTile) {
  if (section.hidden) return;
  section.replaceChildren(...panes.filter((pane) => pane.scale).flatMap((pane) => {
    const of = `${nameOf(pane.scale.kind)}${panes.length > 1 ? ` · ${names[pane.model]}` : ""}`, { order } = pane.scale;
    return [...row(`Highest ${of}`, pane, order.slice(-EACH).reverse(), onTile), ...row(`Lowest ${of}`, pane, order.slice(0, EACH), onTile)];
  }));
}

export function markInGallery(tile) {
  for (const button of section.querySelectorAll(".thumb")) button.setAttribute("aria-current", String(Number(button.dataset.tile) === tile));
}

export function toggleGallery(button) {
  section.hidden = !section.hidden;
  button.setAttribute("aria-pressed", String(!section.hidden));
}
