// One model on one slide: the slide, its tiles as a layer, and marks; all follow one viewport.

import { fetchScores, fetchSlide, pyramidTile } from "./api.js";
import { drawColourBar, drawOutlines, drawScaleBar, drawSelected } from "./marks.js";
import { STEPS, makeScale } from "./scale.js";

const OpenSeadragon = window.OpenSeadragon;

// OpenSeadragon adds a style element, which the content security policy prohibits, unless it finds
// one with its own attribute. It finds this element, which is not a style of HTML.
document.head.append(document.createElementNS("urn:scmil", "style"));
document.head.lastChild.setAttribute("data-openseadragon-mobile-css", "");

function addElement(tag, className, parent) {
  const made = parent.appendChild(document.createElement(tag));
  made.className = className;
  return made;
}

export class Pane {
  constructor(parent, model, settings, colours, onTile) {
    Object.assign(this, {
      model, settings, colours, slide: null, scale: null, outlines: [], selected: null, facts: null,
    });
    this.figure = addElement("figure", "pane", parent);
    this.caption = addElement("figcaption", "", this.figure);
    const stage = addElement("div", "stage", this.figure);
    const zoom = addElement("div", "zoom", stage);
    [this.layer, this.marks] = ["layer", "marks"].map((name) => addElement("canvas", name, stage));
    this.marks.setAttribute("role", "img");
    // Outside of the zoom element, where the layers would cover it.
    const overview = addElement("div", "overview", stage);
    overview.hidden = model > 0;
    this.zoom = OpenSeadragon({
      element: zoom, prefixUrl: "", showNavigationControl: false, drawer: "canvas",
      animationTime: 0.35, maxZoomPixelRatio: 4, minZoomImageRatio: 0.5, visibilityRatio: 0.2,
      gestureSettingsMouse: { clickToZoom: false }, clickTimeThreshold: 800,
      imageLoaderLimit: 6, maxTilesPerFrame: 6, keyboardNavEnabled: false,
      showNavigator: model === 0, navigatorElement: overview, navigatorBackground: "#e6e8ed",
      navigatorOpacity: 1, navigatorBorderColor: "#8a93a5", navigatorDisplayRegionColor: "#2360b8",
    });
    // The page has its own keys.
    this.zoom.innerTracker.keyHandler = this.zoom.innerTracker.keyDownHandler = null;
    for (const event of ["update-viewport", "resize", "open"]) {
      this.zoom.addHandler(event, () => this.draw());
    }
    this.zoom.addHandler("canvas-click", (event) => {
      if (!event.quick || !this.facts) return;
      const point = this.zoom.viewport.viewerElementToImageCoordinates(event.position);
      onTile(this, this.tileAt(point.x, point.y));
    });
  }

  get viewport() { return this.zoom.viewport; }

  async open(slide) {
    this.slide = slide;
    this.selected = this.scale = null;
    this.outlines = [];
    const facts = await fetchSlide(slide, this.model);
    if (this.slide !== slide) return; // another slide was opened in the meantime
    this.facts = facts;
    const [width, height] = facts.size;
    const opened = new Promise((done) => this.zoom.addOnceHandler("open", done));
    this.zoom.open({
      width, height, tileSize: 256, tileOverlap: 0,
      minLevel: Math.min(8, facts.levels), maxLevel: facts.levels,
      getTileUrl: (level, x, y) => pyramidTile(slide, level, x, y),
    });
    await opened;
  }

  has(kind) {
    if (!this.facts) return false;
    if (kind.startsWith("atom:")) return Number(kind.slice(5)) < this.facts.atoms;
    return this.facts.kinds.includes(kind);
  }

  ramp() { return this.scale.signed ? this.colours.signed : this.colours.plain; }

  async recolour() {
    const { slide, settings: { kind, colourBy } } = this;
    const values = this.has(kind) ? await fetchScores(slide, this.model, kind) : null;
    if (slide !== this.slide || kind !== this.settings.kind) return;
    this.scale = values && makeScale(values, kind, colourBy);
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

  centre(tile) { return this.corner(tile).map((corner) => corner + this.facts.side / 2); }

  zoomToTile(tile) {
    const [x, y] = this.centre(tile), width = 9 * this.facts.side;
    const bounds = [x - width / 2, y - width / 2, width, width];
    this.viewport.fitBounds(this.viewport.imageToViewportRectangle(...bounds));
  }

  // From level-0 pixels to the screen, in the current frame of an animation.
  projection() {
    const zero = this.viewport.pixelFromPoint(new OpenSeadragon.Point(0, 0), true);
    const one = this.viewport.pixelFromPoint(new OpenSeadragon.Point(1, 0), true);
    const factor = (one.x - zero.x) / this.facts.size[0];
    return { factor, toScreen: (x, y) => [zero.x + x * factor, zero.y + y * factor] };
  }

  draw() {
    if (!this.facts || !this.zoom.isOpen()) return;
    const { factor, toScreen } = this.projection(), { mpp, side } = this.facts;
    this.drawLayer(toScreen);
    const [context, width, height] = clearCanvas(this.marks);
    if (this.settings.annotations) drawOutlines(context, this.outlines, toScreen);
    if (this.selected !== null) {
      drawSelected(context, ...toScreen(...this.corner(this.selected)), side * factor);
    }
    const bar = drawScaleBar(context, width, height, mpp && mpp / factor);
    const coloured = this.settings.heat && this.scale;
    if (coloured) {
      const { scale, settings: { threshold } } = this;
      drawColourBar(context, width, height, scale, this.ramp(), threshold);
    }
    const label = `Slide, scale bar ${bar}${coloured ? `, coloured by ${this.scale.kind}` : ""}`;
    this.marks.setAttribute("aria-label", label);
  }

  // Tiles are opaque and the whole canvas is transparent, so that overlapping tiles do not blend.
  drawLayer(toScreen) {
    const [context, width, height] = clearCanvas(this.layer);
    this.layer.style.opacity = this.settings.opacity;
    this.shown = 0;
    if (!this.settings.heat || !this.scale) return;
    const { xy, side } = this.facts, { shares } = this.scale;
    const ramp = this.ramp(), byColour = Array.from({ length: STEPS }, () => []);
    for (let tile = 0; tile < shares.length; tile++) {
      if (shares[tile] >= this.settings.threshold) {
        byColour[Math.round(shares[tile] * (STEPS - 1))].push(tile);
      }
    }
    for (const [step, tiles] of byColour.entries()) {
      context.fillStyle = ramp[step];
      this.shown += tiles.length;
      for (const tile of tiles) {
        const [x, y] = [xy[2 * tile], xy[2 * tile + 1]];
        const [left, top] = toScreen(x, y).map(Math.round);
        const [right, bottom] = toScreen(x + side, y + side).map(Math.round);
        if (right >= 0 && bottom >= 0 && left <= width && top <= height) {
          context.fillRect(left, top, Math.max(right - left, 1), Math.max(bottom - top, 1));
        }
      }
    }
  }
}

function clearCanvas(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const density = window.devicePixelRatio || 1;
  const pixels = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    [canvas.width, canvas.height] = pixels;
  }
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

// When one pane moves, the others follow frame by frame. The event of a follower comes later: a
// pane that is where it was moved to does not move the others, which would stop their movement.
export function synchronise(panes) {
  const isClose = (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b) + 1e-12;
  for (const pane of panes) {
    pane.zoom.addHandler("viewport-change", () => {
      const zoom = pane.viewport.getZoom(true), centre = pane.viewport.getCenter(true);
      const { followed } = pane;
      if (followed && isClose(followed.zoom, zoom) && isClose(followed.centre.x, centre.x)
        && isClose(followed.centre.y, centre.y)) return;
      for (const other of panes) {
        if (other === pane || !other.zoom.isOpen()) continue;
        other.followed = { zoom, centre };
        other.viewport.zoomTo(zoom, null, true);
        other.viewport.panTo(centre, true);
      }
    });
  }
}
