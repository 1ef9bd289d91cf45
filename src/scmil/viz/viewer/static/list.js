// The list of slides: label, predictions of each model, and a text filter.

const list = document.querySelector("#slides");
const filter = document.querySelector("#filter");
const SPLITS = {
  train: "training split: the model was fitted to this slide",
  valid: "validation split: epoch and threshold of the model were selected on this slide",
};

const isUnseen = (prediction) => !(prediction.split in SPLITS);

function verdict(prediction) {
  if (!prediction || prediction.correct === null) return ["", ""];
  return prediction.correct ? ["✓", "right"] : ["✗", "wrong"];
}

function span(className, text) {
  const made = document.createElement("span");
  made.className = className;
  made.textContent = text;
  return made;
}

function splitTag(slide) {
  const split = slide.models.find((prediction) => prediction?.split)?.split;
  if (!split) return [];
  const tag = span("split", split);
  tag.title = SPLITS[split] ?? "not used in training";
  return [tag];
}

function predictionRow(prediction, name, several) {
  const [sign, word] = verdict(prediction), row = document.createElement("div");
  if (!prediction) {
    row.append(span("prediction", several ? `${name}: no scores` : "no scores"));
    return row;
  }
  const { predicted, probability } = prediction;
  row.append(span("prediction", several ? `${name}: ` : "predicted: "));
  row.append(span(`prediction ${word}`, `${predicted} ${probability.toFixed(2)} ${sign}`.trim()));
  row.title = `predicted ${predicted} by ${name}, probability ${probability.toFixed(3)}`
    + (word && `, ${word}`);
  return row;
}

function listItem(slide, index, models) {
  const item = document.createElement("li");
  item.id = `slide-${index}`;
  item.setAttribute("role", "option");
  const name = span("name", "");
  const id = document.createElement("b");
  id.textContent = id.title = slide.id;
  name.append(id, ...splitTag(slide));
  const rows = slide.models.map((prediction, model) =>
    predictionRow(prediction, models[model].name, models.length > 1));
  item.append(name, span("prediction", `label: ${slide.label ?? "unknown"}`), ...rows);
  return item;
}

function searchText(slide) {
  const texts = slide.models.flatMap((prediction) => (prediction
    ? [prediction.predicted, prediction.split, verdict(prediction)[1]] : ["unscored"]));
  return [slide.id, slide.label, ...texts].filter(Boolean).join(" ").toLowerCase();
}

// Slides of the training and validation splits are not counted: the model was fitted to them.
function countCorrect(slides, models) {
  const labelled = models.map((_, model) => slides.map((slide) => slide.models[model])
    .filter((prediction) => prediction && prediction.correct !== null));
  const counts = labelled.map((predictions, model) => {
    const unseen = predictions.filter(isUnseen);
    const correct = unseen.filter((prediction) => prediction.correct).length;
    const name = models.length > 1 ? models[model].name : "unseen slides";
    return unseen.length ? `${name}: ${correct} of ${unseen.length} right` : "";
  }).filter(Boolean);
  if (counts.length && models.length > 1) counts.unshift("unseen slides:");
  const seen = Math.max(...labelled.map((all) => all.filter((one) => !isUnseen(one)).length));
  return seen ? [...counts, `not counted (train, valid): ${seen}`] : counts;
}

export class SlideList {
  constructor(page, onSelect) {
    Object.assign(this, { slides: page.slides, models: page.models, onSelect, selected: null });
    this.items = page.slides.map((slide, index) => listItem(slide, index, page.models));
    this.items.forEach((item, index) => item.addEventListener("click", () => onSelect(index)));
    list.append(...this.items);
    filter.addEventListener("input", () => this.filter());
    this.filter();
  }

  filter() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (slide) => words.every((word) => searchText(slide).includes(word));
    this.shown = this.slides.flatMap((slide, index) => (matches(slide) ? [index] : []));
    this.items.forEach((item, index) => { item.hidden = !this.shown.includes(index); });
    const shown = this.shown.map((index) => this.slides[index]);
    const lines = [
      `${shown.length} of ${this.slides.length} slides`, ...countCorrect(shown, this.models),
    ];
    document.querySelector("#count").replaceChildren(...lines.map((line) => span("line", line)));
  }

  select(index) {
    this.selected = index;
    this.items.forEach((item, other) =>
      item.setAttribute("aria-selected", String(other === index)));
    list.setAttribute("aria-activedescendant", `slide-${index}`);
    this.items[index].scrollIntoView({ block: "nearest" });
  }

  step(by) {
    const position = this.shown.indexOf(this.selected);
    const next = position < 0 ? 0 : Math.min(Math.max(position + by, 0), this.shown.length - 1);
    if (this.shown.length && this.shown[next] !== this.selected) this.onSelect(this.shown[next]);
  }
}
