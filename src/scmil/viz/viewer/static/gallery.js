// The tiles of the slide with the highest and the lowest scores, for each model.

import { tileImage } from "./api.js";
import { formatNumber, nameOfKind } from "./scale.js";

const section = document.querySelector("#gallery");
const TILES = 12;

function thumbnail(pane, tile, onTile) {
  const button = document.createElement("button");
  button.className = "thumb";
  button.type = "button";
  button.dataset.tile = tile;
  const image = document.createElement("img");
  const src = tileImage(pane.slide, pane.model, tile);
  Object.assign(image, { src, alt: `tile ${tile}`, loading: "lazy" });
  button.append(image, formatNumber(pane.scale.values[tile]));
  button.addEventListener("click", () => onTile(pane, tile));
  return button;
}

function row(title, pane, tiles, onTile) {
  const heading = document.createElement("h3");
  heading.textContent = title;
  const line = document.createElement("div");
  line.className = "row";
  line.append(...tiles.map((tile) => thumbnail(pane, tile, onTile)));
  return [heading, line];
}

export function drawGallery(panes, names, onTile) {
  if (section.hidden) return;
  section.replaceChildren(...panes.filter((pane) => pane.scale).flatMap((pane) => {
    const { kind, order } = pane.scale;
    const score = nameOfKind(kind) + (panes.length > 1 ? ` · ${names[pane.model]}` : "");
    return [
      ...row(`Highest ${score}`, pane, order.slice(-TILES).reverse(), onTile),
      ...row(`Lowest ${score}`, pane, order.slice(0, TILES), onTile),
    ];
  }));
}

export function markInGallery(tile) {
  for (const button of section.querySelectorAll(".thumb")) {
    button.setAttribute("aria-current", String(Number(button.dataset.tile) === tile));
  }
}

export function toggleGallery(button) {
  section.hidden = !section.hidden;
  button.setAttribute("aria-pressed", String(!section.hidden));
}
