// Marks above slide and heatmap: outlines, the selected tile, the scale bar, and the colour bar.

import { STEPS, formatNumber, nameOfKind } from "./scale.js";

const RED = "#e61414", INK = "#14181f", COLOUR_BAR_PX = 226;
const NO_MPP = "microns per pixel unknown";

export function drawOutlines(context, rings, toScreen) {
  context.lineJoin = "round";
  for (const [width, colour] of [[4.5, "#ffffffc0"], [2.2, RED]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.beginPath();
    for (const ring of rings) {
      for (let i = 0; i < ring.length; i += 2) {
        const [x, y] = toScreen(ring[i], ring[i + 1]);
        i ? context.lineTo(x, y) : context.moveTo(x, y);
      }
      context.closePath();
    }
    context.stroke();
  }
}

export function drawSelected(context, left, top, side) {
  for (const [width, colour] of [[5, "#ffffff"], [2.5, INK]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left, top, side, side);
  }
}

function drawPlate(context, left, top, width, height) {
  context.fillStyle = "#ffffffe6";
  context.beginPath();
  context.roundRect(left, top, width, height, 6);
  context.fill();
  context.fillStyle = INK;
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "alphabetic";
}

// A length of 1, 2 or 5 times a power of ten of at most 130 pixels, or the available width.
export function scaleBar(micronsPerPixel, availablePixels) {
  const longest = Math.max(Math.min(130, availablePixels), 30) * micronsPerPixel;
  const power = 10 ** Math.floor(Math.log10(longest));
  const microns = [5, 2, 1].map((digit) => digit * power).find((length) => length <= longest);
  const text = microns >= 1000 ? `${microns / 1000} mm` : `${Number(microns.toPrecision(2))} µm`;
  return { pixels: microns / micronsPerPixel, text };
}

export function drawScaleBar(context, width, height, micronsPerPixel) {
  if (!micronsPerPixel) {
    drawPlate(context, 12, height - 36, 172, 24);
    context.fillText(NO_MPP, 22, height - 20);
    return NO_MPP;
  }
  const { pixels, text } = scaleBar(micronsPerPixel, width - COLOUR_BAR_PX - 60);
  drawPlate(context, 12, height - 48, Math.max(pixels, 44) + 24, 36);
  context.fillRect(24, height - 24, pixels, 4);
  context.fillText(text, 24, height - 31);
  return text;
}

export function drawColourBar(context, width, height, scale, colours, threshold) {
  const length = COLOUR_BAR_PX - 36, left = width - length - 34, top = height - 62;
  drawPlate(context, left - 14, top - 10, COLOUR_BAR_PX, 60);
  const suffix = scale.kind.startsWith("atom:") ? ", |code|" : "";
  const title = nameOfKind(scale.kind).replace(/ \(.*/, "") + suffix;
  context.textAlign = "left";
  context.fillText(title.length > 34 ? `${title.slice(0, 33)}…` : title, left, top + 5);
  for (let step = 0; step < STEPS; step++) {
    context.fillStyle = step / (STEPS - 1) >= threshold - 1e-9 ? colours[step] : "#c9ccd3";
    context.fillRect(left + (step * length) / STEPS, top + 11, length / STEPS + 0.6, 10);
  }
  context.fillStyle = INK;
  for (const [share, value] of scale.ticks) {
    context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
    context.fillText(formatNumber(value), left + share * length, top + 34);
  }
  context.font = "10px system-ui, sans-serif";
  context.fillStyle = "#5c6577";
  const notes = scale.signed ? ["lowers the logit", "", "raises the logit"] : scale.colourBy === "rank"
    ? ["lowest tile", "median", "highest tile"] : ["", "colour by value", ""];
  notes.forEach((note, position) => {
    context.textAlign = ["left", "center", "right"][position];
    context.fillText(note, left + (position * length) / 2, top + 46);
  });
  context.textAlign = "left";
}
