// Everything the page asks of its own server; it asks nobody else. Addresses begin with the prefix of the page, which is new
// at each start of the server.

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error((await answer.text()) || `no answer (${answer.status})`);
  return answer;
}

const json = async (address) => (await ask(address)).json();

export const listOf = () => json("api/slides");
export const slideOf = (slide, model) => json(`api/slide/${slide}?model=${model}`);
export const truthOf = (slide) => json(`api/slide/${slide}/truth`);
export const codeOf = (slide, model, tile) => json(`api/slide/${slide}/code/${tile}?model=${model}`);
export const atomOf = (model, atom) => json(`api/atlas/${atom}?model=${model}`);
export const scoresOf = async (slide, model, kind) =>
  new Float32Array(await (await ask(`api/slide/${slide}/scores?model=${model}&kind=${encodeURIComponent(kind)}`)).arrayBuffer());

export const pyramidTile = (slide, level, x, y) => `dz/${slide}/${level}/${x}_${y}.jpg`;
export const tilePicture = (slide, model, tile) => `api/slide/${slide}/tile/${tile}?model=${model}`;
export const atomPicture = (model, atom, number) => `api/atlas/${atom}/${number}?model=${model}`;
export const layerFile = (slide, model, kind, least) =>
  `api/slide/${slide}/layer.geojson?model=${model}&kind=${encodeURIComponent(kind)}${least === null ? "" : `&least=${least}`}`;
