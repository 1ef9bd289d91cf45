// From scores to colours: by rank within the slide, or by value; what an atom leaves at zero is not shown.

export const STEPS = 64;

export function ramp(stops) {
  return Array.from({ length: STEPS }, (_, step) => {
    const at = (step / (STEPS - 1)) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    const mix = stops[low].map((from, channel) => Math.round(from + (stops[low + 1][channel] - from) * (at - low)));
    return `rgb(${mix.join(",")})`;
  });
}

// Ranks, and not values, unless asked: attention is heavy-tailed, and its largest value would leave the rest one colour.
export function scaleOf(raw, kind, how) {
  const atom = kind.startsWith("atom:");
  const values = atom ? raw.map(Math.abs) : raw;
  const used = [...values.keys()].filter((tile) => !atom || values[tile] !== 0);
  used.sort((a, b) => values[a] - values[b]);
  const at = (share) => (used.length ? values[used[Math.round(share * (used.length - 1))]] : NaN);
  const [low, high] = kind.startsWith("probability") ? [0, 1] : atom ? [0, at(1)] : [at(0), at(1)];
  const shares = new Float32Array(values.length).fill(NaN);
  if (how === "rank") rankInto(shares, used, values);
  else for (const tile of used) shares[tile] = high > low ? (values[tile] - low) / (high - low) : 0.5;
  const tick = how === "rank" ? at : (share) => low + share * (high - low);
  return { kind, how, values, shares, order: used, ticks: [0, 0.5, 1].map((share) => [share, tick(share)]) };
}

function rankInto(shares, order, values) {
  const last = Math.max(order.length - 1, 1);
  for (let start = 0, stop; start < order.length; start = stop) {
    for (stop = start + 1; stop < order.length && values[order[stop]] === values[order[start]]; stop++);
    const share = order.length === 1 ? 1 : (start + stop - 1) / 2 / last; // equal scores share one rank
    for (let place = start; place < stop; place++) shares[order[place]] = share;
  }
}

// The smallest score that is still shown, for the file that QuPath reads; null if all are.
export function leastShown(scale, threshold) {
  if (threshold === 0) return null;
  const first = scale.order.find((tile) => scale.shares[tile] >= threshold);
  return first === undefined ? Infinity : scale.values[first];
}

export function said(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("e-", "e−");
  return String(Number(value.toPrecision(3)));
}

const NAMES = { attention: "attention", ratio: "attention × tiles", lambda: "λ (sparsity weight)", sparsity: "sparsity (share of zero atoms)" };
export function nameOf(kind) {
  const [name, detail] = kind.split(/:(.*)/s);
  if (name === "probability") return `probability of ${detail}`;
  if (name === "atom") return `atom ${detail}`;
  return NAMES[kind] ?? kind;
}
