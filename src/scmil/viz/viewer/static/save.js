// The view as a picture, with everything that is needed to read it; the layer as a file for QuPath.

import { layerFile } from "./api.js";
import { leastShown, nameOf } from "./scale.js";

const HEAD = 34;

function download(address, name) {
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

export function pictureOf(panes, slide, captions) {
  const dense = window.devicePixelRatio || 1, canvas = document.createElement("canvas");
  const widths = panes.map((pane) => pane.marks.width), tall = panes[0].marks.height;
  canvas.width = widths.reduce((sum, width) => sum + width, 0) + 4 * (panes.length - 1);
  canvas.height = tall + HEAD * dense;
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  let left = 0;
  panes.forEach((pane, place) => {
    const top = HEAD * dense, size = [widths[place], tall];
    context.drawImage(pane.zoom.drawer.canvas, left, top, ...size);
    context.globalAlpha = pane.look.opacity;
    context.drawImage(pane.layer, left, top, ...size);
    context.globalAlpha = 1;
    context.drawImage(pane.marks, left, top, ...size);
    context.fillStyle = "#14181f";
    context.font = `${14 * dense}px system-ui, sans-serif`;
    const score = pane.look.heat && pane.scale ? ` · colours: ${nameOf(pane.scale.kind)} by ${pane.scale.how}` : "";
    context.fillText(`${slide} · ${captions[place]}${score}`, left + 10 * dense, 22 * dense, widths[place] - 20 * dense);
    left += widths[place] + 4;
  });
  return canvas;
}

export async function savePicture(panes, slide, captions) {
  const blob = await new Promise((done) => pictureOf(panes, slide, captions).toBlob(done, "image/png"));
  const address = URL.createObjectURL(blob);
  download(address, `${slide}.png`);
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function saveLayers(panes, slide, names) {
  for (const pane of panes.filter((one) => one.scale)) {
    const { kind } = pane.scale, name = `${slide} ${names[pane.model]} ${kind.replace(":", " ")}.geojson`;
    download(layerFile(pane.slide, pane.model, kind, leastShown(pane.scale, pane.look.threshold)), name);
  }
}
