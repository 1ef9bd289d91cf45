// Save the view as an image with captions and scales, and the layer as a file for QuPath.

import { layerFile } from "./api.js";
import { leastShown, nameOfKind } from "./scale.js";

const HEAD_PX = 34, GAP_PX = 4;

function download(address, name) {
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

export function drawView(panes, slide, captions) {
  const density = window.devicePixelRatio || 1, canvas = document.createElement("canvas");
  const widths = panes.map((pane) => pane.marks.width), { height } = panes[0].marks;
  const top = HEAD_PX * density;
  canvas.width = widths.reduce((sum, width) => sum + width, 0) + GAP_PX * (panes.length - 1);
  canvas.height = height + top;
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  let left = 0;
  panes.forEach((pane, i) => {
    const { settings, scale } = pane, size = [widths[i], height];
    context.drawImage(pane.zoom.drawer.canvas, left, top, ...size);
    context.globalAlpha = settings.opacity;
    context.drawImage(pane.layer, left, top, ...size);
    context.globalAlpha = 1;
    context.drawImage(pane.marks, left, top, ...size);
    context.fillStyle = "#14181f";
    context.font = `${14 * density}px system-ui, sans-serif`;
    const score = settings.heat && scale
      ? ` · colours: ${nameOfKind(scale.kind)} by ${scale.colourBy}` : "";
    const text = `${slide} · ${captions[i]}${score}`;
    context.fillText(text, left + 10 * density, 22 * density, widths[i] - 20 * density);
    left += widths[i] + GAP_PX;
  });
  return canvas;
}

export async function saveImage(panes, slide, captions) {
  const canvas = drawView(panes, slide, captions);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  const address = URL.createObjectURL(blob);
  download(address, `${slide}.png`);
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function saveLayers(panes, slide, names) {
  for (const { scale, settings, slide: index, model } of panes.filter((pane) => pane.scale)) {
    const least = leastShown(scale, settings.threshold);
    const name = `${slide} ${names[model]} ${scale.kind.replace(":", " ")}.geojson`;
    download(layerFile(index, model, scale.kind, least), name);
  }
}
