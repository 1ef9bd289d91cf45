// What lies over slide and heatmap: outlines, the chosen tile, the scale bar in microns, the colour bar with its numbers.

import { STEPS, nameOf, said } from "./scale.js";

const RED = "#e61414", INK = "#14181f", COLOUR_BAR_PX = 226;

export function drawTruth(context, rings, place) {
  context.lineJoin = "round";
  for (const [width, colour] of [[4.5, "#ffffffc0"], [2.2, RED]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.beginPath();
    for (const ring of rings) {
      for (let i = 0; i < ring.length; i += 2) {
        const [x, y] = place(ring[i], ring[i + 1]);
        i ? context.lineTo(x, y) : context.moveTo(x, y);
      }
      context.closePath();
    }
    context.stroke();
  }
}

export function drawChosen(context, left, top, side) {
  for (const [width, colour] of [[5, "#ffffff"], [2.5, INK]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left, top, side, side);
  }
}

function plate(context, left, top, width, height) {
  context.fillStyle = "#ffffffe6";
  context.beginPath();
  context.roundRect(left, top, width, height, 6);
  context.fill();
  context.fillStyle = INK;
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "alphabetic";
}

// A length of 1, 2 or 5 times a power of ten that takes up to 130 pixels, or less where the colour bar needs the room.
export function barOf(micronsPerPixel, room) {
  const most = Math.max(Math.min(130, room), 30) * micronsPerPixel, power = 10 ** Math.floor(Math.log10(most));
  const microns = [5, 2, 1].map((digit) => digit * power).find((length) => length <= most);
  const text = microns >= 1000 ? `${microns / 1000} mm` : `${Number(microns.toPrecision(2))} µm`;
  return { pixels: microns / micronsPerPixel, text };
}

export function drawScaleBar(context, width, height, micronsPerPixel) {
  if (!micronsPerPixel) {
    plate(context, 12, height - 36, 150, 24);
    context.fillText("microns are not known", 22, height - 20);
    return "microns are not known";
  }
  const { pixels, text } = barOf(micronsPerPixel, width - COLOUR_BAR_PX - 60);
  plate(context, 12, height - 48, Math.max(pixels, 44) + 24, 36);
  context.fillRect(24, height - 24, pixels, 4);
  context.fillText(text, 24, height - 31);
  return text;
}

export function drawColourBar(context, width, height, scale, colours, threshold) {
  const long = COLOUR_BAR_PX - 36, left = width - long - 34, top = height - 62;
  plate(context, left - 14, top - 10, COLOUR_BAR_PX, 60);
  const atom = scale.kind.startsWith("atom:");
  const title = `${nameOf(scale.kind).replace(/ \(.*/, "")}${atom ? ", size of the code" : ""}`;
  context.textAlign = "left";
  context.fillText(title.length > 34 ? `${title.slice(0, 33)}…` : title, left, top + 5);
  for (let step = 0; step < STEPS; step++) {
    context.fillStyle = step / (STEPS - 1) >= threshold - 1e-9 ? colours[step] : "#c9ccd3";
    context.fillRect(left + (step * long) / STEPS, top + 11, long / STEPS + 0.6, 10);
  }
  context.fillStyle = INK;
  for (const [share, value] of scale.ticks) {
    context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
    context.fillText(said(value), left + share * long, top + 34);
  }
  context.font = "10px system-ui, sans-serif";
  context.fillStyle = "#5c6577";
  const ends = scale.how === "rank" ? ["lowest tile", "median", "highest"] : ["", "colour by value", ""];
  ends.forEach((word, place) => {
    context.textAlign = ["left", "center", "right"][place];
    context.fillText(word, left + (place * long) / 2, top + 46);
  });
  context.textAlign = "left";
}
