// One model on one slide: deep zoom below, its tiles as a layer, marks on top; all three follow one viewport.

import { pyramidTile, scoresOf, slideOf } from "./api.js";
import { drawChosen, drawColourBar, drawScaleBar, drawTruth } from "./marks.js";
import { STEPS, scaleOf } from "./scale.js";

const Zoom = window.OpenSeadragon;

// OpenSeadragon adds a style to the page, which the policy forbids, unless it finds its own: it finds this, which is no style.
document.head.append(document.createElementNS("urn:scmil", "style"));
document.head.lastChild.setAttribute("data-openseadragon-mobile-css", "");

function element(tag, className, parent) {
  const made = parent.appendChild(document.createElement(tag));
  made.className = className;
  return made;
}

export class Pane {
  constructor(parent, model, look, colours, onTile) {
    Object.assign(this, { model, look, colours, slide: null, scale: null, truth: [], chosen: null, facts: null });
    this.figure = element("figure", "pane", parent);
    this.caption = element("figcaption", "", this.figure);
    const stage = element("div", "stage", this.figure);
    const zoom = element("div", "zoom", stage);
    [this.layer, this.marks] = ["layer", "marks"].map((name) => element("canvas", name, stage));
    this.marks.setAttribute("role", "img");
    const overview = element("div", "overview", stage); // above the layers, which would cover it inside the zoom
    overview.hidden = model > 0;
    this.zoom = Zoom({
      element: zoom, prefixUrl: "", showNavigationControl: false, drawer: "canvas", animationTime: 0.35, maxZoomPixelRatio: 4,
      minZoomImageRatio: 0.5, visibilityRatio: 0.2, gestureSettingsMouse: { clickToZoom: false }, clickTimeThreshold: 800, imageLoaderLimit: 6, maxTilesPerFrame: 6,
      showNavigator: model === 0, navigatorElement: overview, keyboardNavEnabled: false,
      navigatorBackground: "#e6e8ed", navigatorOpacity: 1, navigatorBorderColor: "#8a93a5", navigatorDisplayRegionColor: "#2360b8",
    });
    this.zoom.innerTracker.keyHandler = this.zoom.innerTracker.keyDownHandler = null; // the page has keys of its own
    for (const event of ["update-viewport", "resize", "open"]) this.zoom.addHandler(event, () => this.draw());
    this.zoom.addHandler("canvas-click", (event) => {
      if (!event.quick || !this.facts) return;
      const at = this.zoom.viewport.viewerElementToImageCoordinates(event.position);
      onTile(this, this.tileAt(at.x, at.y));
    });
  }

  get viewport() { return this.zoom.viewport; }

  async show(slide) {
    this.slide = slide;
    this.chosen = this.scale = null;
    this.truth = [];
    const facts = await slideOf(slide, this.model);
    if (this.slide !== slide) return; // another slide was asked for in the meantime
    this.facts = facts;
    const [width, height] = facts.size;
    const opened = new Promise((done) => this.zoom.addOnceHandler("open", done));
    this.zoom.open({
      width, height, tileSize: 256, tileOverlap: 0, minLevel: Math.min(8, facts.levels), maxLevel: facts.levels,
      getTileUrl: (level, x, y) => pyramidTile(slide, level, x, y),
    });
    await opened;
  }

  has(kind) {
    if (!this.facts) return false;
    return kind.startsWith("atom:") ? Number(kind.slice(5)) < this.facts.atoms : this.facts.kinds.includes(kind);
  }

  async colour() {
    const { slide, look: { kind, how } } = this;
    const raw = this.has(kind) ? await scoresOf(slide, this.model, kind) : null;
    if (slide !== this.slide || kind !== this.look.kind) return;
    this.scale = raw && scaleOf(raw, kind, how);
    this.draw();
  }

  tileAt(x, y) {
    const { xy, side } = this.facts;
    for (let tile = xy.length / 2 - 1; tile >= 0; tile--) {
      const right = x - xy[2 * tile], down = y - xy[2 * tile + 1];
      if (right >= 0 && down >= 0 && right < side && down < side) return tile;
    }
    return null;
  }

  corner(tile) { return [this.facts.xy[2 * tile], this.facts.xy[2 * tile + 1]]; }

  goTo(tile) {
    const [x, y] = this.corner(tile), { side } = this.facts, wide = 9 * side;
    const [left, top] = [x + side / 2 - wide / 2, y + side / 2 - wide / 2];
    this.viewport.fitBounds(this.viewport.imageToViewportRectangle(left, top, wide, wide));
  }

  // Where a level-0 pixel is on the screen, at this moment of a movement.
  placing() {
    const zero = this.viewport.pixelFromPoint(new Zoom.Point(0, 0), true);
    const one = this.viewport.pixelFromPoint(new Zoom.Point(1, 0), true);
    const by = (one.x - zero.x) / this.facts.size[0];
    return { by, place: (x, y) => [zero.x + x * by, zero.y + y * by] };
  }

  draw() {
    if (!this.facts || !this.zoom.isOpen()) return;
    const { by, place } = this.placing();
    this.drawLayer(place, by);
    const [context, width, height] = cleared(this.marks);
    if (this.look.truth) drawTruth(context, this.truth, place);
    if (this.chosen !== null) drawChosen(context, ...place(...this.corner(this.chosen)), this.facts.side * by);
    const length = drawScaleBar(context, width, height, this.facts.mpp && this.facts.mpp / by);
    const coloured = this.look.heat && this.scale;
    if (coloured) drawColourBar(context, width, height, this.scale, this.colours, this.look.threshold);
    this.marks.setAttribute("aria-label", `Slide, scale bar ${length}${coloured ? `, coloured by ${this.scale.kind}` : ""}`);
  }

  // Opaque, and the whole canvas made transparent: neighbours then never show through each other.
  drawLayer(place, by) {
    const [context, width, height] = cleared(this.layer);
    this.layer.style.opacity = this.look.opacity;
    this.shown = 0;
    if (!this.look.heat || !this.scale) return;
    const { xy, side } = this.facts, { shares } = this.scale;
    const buckets = Array.from({ length: STEPS }, () => []);
    for (let tile = 0; tile < shares.length; tile++) {
      if (shares[tile] >= this.look.threshold) buckets[Math.round(shares[tile] * (STEPS - 1))].push(tile);
    }
    for (const [step, tiles] of buckets.entries()) {
      context.fillStyle = this.colours[step];
      this.shown += tiles.length;
      for (const tile of tiles) {
        const [left, top] = place(xy[2 * tile], xy[2 * tile + 1]).map(Math.round);
        const [right, bottom] = place(xy[2 * tile] + side, xy[2 * tile + 1] + side).map(Math.round);
        if (right >= 0 && bottom >= 0 && left <= width && top <= height) {
          context.fillRect(left, top, Math.max(right - left, 1), Math.max(bottom - top, 1));
        }
      }
    }
  }
}

function cleared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, dense = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
  }
  const context = canvas.getContext("2d");
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

// Whoever moves leads, and the others follow frame by frame. A follower is told of its own movement only later: where it was
// led to, it does not lead from there, or it would stop whoever is still moving.
export function lock(panes) {
  const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b) + 1e-12;
  for (const leader of panes) {
    leader.zoom.addHandler("viewport-change", () => {
      const zoom = leader.viewport.getZoom(true), center = leader.viewport.getCenter(true), { led } = leader;
      if (led && same(led.zoom, zoom) && same(led.center.x, center.x) && same(led.center.y, center.y)) return;
      for (const other of panes) {
        if (other === leader || !other.zoom.isOpen()) continue;
        other.led = { zoom, center };
        other.viewport.zoomTo(zoom, null, true);
        other.viewport.panTo(center, true);
      }
    });
  }
}
