// Map scores to colours, by rank within the slide or by value. Tiles that do not use an atom have
// no colour.

export const STEPS = 64;

export function colourRamp(stops) {
  return Array.from({ length: STEPS }, (_, step) => {
    const position = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(position), stops.length - 2), fraction = position - low;
    const mixed = stops[low].map((from, channel) =>
      Math.round(from + (stops[low + 1][channel] - from) * fraction));
    return `rgb(${mixed.join(",")})`;
  });
}

// Evidence has zero in the middle.
const isSigned = (kind) => kind.startsWith("evidence:");

// Ranks would hide where zero is, and that all models agree.
export const isByValue = (kind) => isSigned(kind) || kind.startsWith("spread:");

// Ranks by default: attention is heavy-tailed, so by value almost all tiles would have one colour.
export function makeScale(raw, kind, chosen) {
  const signed = isSigned(kind), colourBy = isByValue(kind) ? "value" : chosen;
  const atom = kind.startsWith("atom:");
  const values = atom ? raw.map(Math.abs) : raw;
  const order = [...values.keys()].filter((tile) => !atom || values[tile] !== 0);
  order.sort((a, b) => values[a] - values[b]);
  const quantile = (share) =>
    (order.length ? values[order[Math.round(share * (order.length - 1))]] : NaN);
  const [low, high] = signed ? symmetricRange(values)
    : kind.startsWith("probability") ? [0, 1]
    : [atom || kind.startsWith("spread:") ? 0 : quantile(0), quantile(1)];
  const shares = new Float32Array(values.length).fill(NaN);
  if (colourBy === "rank") setRanks(shares, order, values);
  else {
    const span = high - low;
    for (const tile of order) {
      shares[tile] = span > 0 ? Math.min(Math.max((values[tile] - low) / span, 0), 1) : 0.5;
    }
  }
  const valueAt = colourBy === "rank" ? quantile : (share) => low + share * (high - low);
  const ticks = [0, 0.5, 1].map((share) => [share, valueAt(share)]);
  return { kind, colourBy, signed, values, shares, order, ticks };
}

// From minus to plus percentile 99 of the absolute values.
function symmetricRange(values) {
  const sizes = Array.from(values, Math.abs).filter((size) => size > 0).sort((a, b) => a - b);
  const bound = sizes.length ? sizes[Math.round(0.99 * (sizes.length - 1))] : 1;
  return [-bound, bound];
}

function setRanks(shares, order, values) {
  const last = Math.max(order.length - 1, 1);
  for (let start = 0, stop; start < order.length; start = stop) {
    const value = values[order[start]];
    for (stop = start + 1; stop < order.length && values[order[stop]] === value; stop++);
    // Equal scores have the same rank.
    const share = order.length === 1 ? 1 : (start + stop - 1) / 2 / last;
    for (let i = start; i < stop; i++) shares[order[i]] = share;
  }
}

// The smallest score that is shown, for the exported layer; null if all tiles are shown.
export function leastShown(scale, threshold) {
  if (threshold === 0) return null;
  const first = scale.order.find((tile) => scale.shares[tile] >= threshold);
  return first === undefined ? Infinity : scale.values[first];
}

export function formatNumber(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    return value.toExponential(1).replaceAll("-", "−");
  }
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

const NAMES = {
  attention: "attention", ratio: "attention × tiles (average tile = 1)",
  lambda: "λ (sparsity weight)", sparsity: "sparsity (share of zero coefficients)",
};

export function nameOfKind(kind) {
  const [name, detail] = kind.split(/:(.*)/s);
  if (name === "probability") return `probability of ${detail}`;
  if (name === "evidence") return `evidence for ${detail} (contribution to its logit)`;
  if (name === "atom") return `atom ${detail}`;
  if (name === "spread") return `spread of ${nameOfKind(detail).replace(/ \(.*/, "")}`;
  return NAMES[kind] ?? kind;
}
