// The list of slides: what is true, what each model says, and whether it is right; a word filters it.

const list = document.querySelector("#slides");
const filter = document.querySelector("#filter");

function mark(said) {
  if (!said || said.correct === null) return ["", ""];
  return said.correct ? ["✓", "right"] : ["✗", "wrong"];
}

function span(className, text) {
  const made = document.createElement("span");
  made.className = className;
  made.textContent = text;
  return made;
}

function lineOf(slide, place, models) {
  const line = document.createElement("li");
  line.id = `slide-${place}`;
  line.setAttribute("role", "option");
  const name = span("name", "");
  const id = document.createElement("b");
  id.textContent = id.title = slide.id;
  name.append(id);
  const part = slide.models.find((said) => said?.part)?.part;
  if (part) {
    const tag = span("part", part);
    tag.title = { train: "the model has learned from this slide", valid: "the epoch was chosen on this slide" }[part] ?? "the model has not seen this slide";
    name.append(tag);
  }
  const truth = slide.label === null ? "label not known" : `is ${slide.label}`;
  const rows = slide.models.map((said, model) => {
    const [sign, word] = mark(said), row = document.createElement("div");
    if (models.length === 1) row.append(span("said", `${truth} · `));
    row.append(span(`said ${word}`, said ? `${sign} ${models.length > 1 ? "" : "says "}${said.predicted} ${said.probability.toFixed(2)}` : "not scored"));
    if (models.length > 1) row.append(span("said", ` · ${models[model].name}`));
    if (word) row.setAttribute("aria-label", `${truth}, ${models[model].name} says ${said.predicted}, ${word}`);
    return row;
  });
  line.append(name, ...(models.length > 1 ? [span("said", truth)] : []), ...rows);
  return line;
}

function words(slide) {
  const said = slide.models.flatMap((one) => (one ? [one.predicted, one.part, mark(one)[1]] : ["unscored"]));
  return [slide.id, slide.label, ...said].filter(Boolean).join(" ").toLowerCase();
}

export class SlideList {
  constructor(page, onChoose) {
    Object.assign(this, { slides: page.slides, onChoose, chosen: null });
    this.lines = page.slides.map((slide, place) => lineOf(slide, place, page.models));
    this.lines.forEach((line, place) => line.addEventListener("click", () => onChoose(place)));
    list.append(...this.lines);
    filter.addEventListener("input", () => this.filter());
    this.filter();
  }

  filter() {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.slides.flatMap((slide, place) => (wanted.every((word) => words(slide).includes(word)) ? [place] : []));
    this.lines.forEach((line, place) => { line.hidden = !this.shown.includes(place); });
    const scored = this.shown.map((place) => this.slides[place].models[0]).filter((said) => said && said.correct !== null);
    const right = scored.filter((said) => said.correct).length;
    document.querySelector("#count").textContent =
      `${this.shown.length} of ${this.slides.length} slides${scored.length ? ` · ${right} of ${scored.length} right` : ""}`;
  }

  mark(place) {
    this.chosen = place;
    this.lines.forEach((line, other) => line.setAttribute("aria-selected", String(other === place)));
    list.setAttribute("aria-activedescendant", `slide-${place}`);
    this.lines[place].scrollIntoView({ block: "nearest" });
  }

  step(by) {
    const here = this.shown.indexOf(this.chosen);
    const next = here < 0 ? 0 : Math.min(Math.max(here + by, 0), this.shown.length - 1);
    if (this.shown.length && this.shown[next] !== this.chosen) this.onChoose(this.shown[next]);
  }
}
