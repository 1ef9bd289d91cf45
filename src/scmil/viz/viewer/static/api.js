// All requests of the page; they go to its own server only. Addresses are relative, because the
// path of the page has a prefix that is random for each start of the server.

async function request(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error((await response.text()) || `HTTP status ${response.status}`);
  return response;
}

const requestJson = async (address) => (await request(address)).json();

export const fetchList = () => requestJson("api/slides");
export const fetchSlide = (slide, model) => requestJson(`api/slide/${slide}?model=${model}`);
export const fetchOutlines = (slide) => requestJson(`api/slide/${slide}/outlines`);
export const fetchCode = (slide, model, tile) =>
  requestJson(`api/slide/${slide}/code/${tile}?model=${model}`);
export const fetchAtom = (model, atom) => requestJson(`api/atlas/${atom}?model=${model}`);

const kindQuery = (model, kind) => `model=${model}&kind=${encodeURIComponent(kind)}`;
export async function fetchScores(slide, model, kind) {
  const response = await request(`api/slide/${slide}/scores?${kindQuery(model, kind)}`);
  return new Float32Array(await response.arrayBuffer());
}

export const pyramidTile = (slide, level, x, y) => `dz/${slide}/${level}/${x}_${y}.jpg`;
export const tileImage = (slide, model, tile) => `api/slide/${slide}/tile/${tile}?model=${model}`;
export const atomImage = (model, atom, number) => `api/atlas/${atom}/${number}?model=${model}`;
export const layerFile = (slide, model, kind, least) =>
  `api/slide/${slide}/layer.geojson?${kindQuery(model, kind)}` +
  (least === null ? "" : `&least=${least}`);
