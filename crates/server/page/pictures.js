// Pictures of the message that is being written: chosen, pasted or dropped.

import { t } from './text.js';

const get = (id) => document.getElementById(id);
const [place, input] = ['pictures', 'picture-file'].map(get);

// URLs of the pictures, `data:image/…`.
let pictures = [];

// Returns the pictures, and begins with none.
export function take() {
  const taken = pictures;
  put([]);
  return taken;
}

// Replaces the pictures.
export function put(urls) {
  pictures = [...urls];
  place.hidden = !pictures.length;
  place.replaceChildren(...pictures.map(preview));
}

// Returns an element with a picture.
export function shown(url, number) {
  const made = document.createElement('img');
  made.src = url;
  made.alt = t('pictureNumber', { n: number });
  return made;
}

function preview(url, index) {
  const made = document.createElement('li');
  const remove = document.createElement('button');
  remove.type = 'button';
  remove.textContent = '×';
  remove.setAttribute('aria-label', t('removePicture', { n: index + 1 }));
  remove.addEventListener('click', () => put(pictures.filter((_, one) => one !== index)));
  made.append(shown(url, index + 1), remove);
  return made;
}

// Adds the pictures among files; returns whether there were some.
function add(files) {
  const found = [...files].filter((file) => file.type.startsWith('image/'));
  for (const file of found) {
    const reader = new FileReader();
    reader.addEventListener('load', () => put([...pictures, reader.result]));
    reader.readAsDataURL(file);
  }
  return found.length > 0;
}

get('picture').addEventListener('click', () => input.click());
input.addEventListener('change', () => {
  add(input.files);
  input.value = '';
});
get('prompt').addEventListener('paste', (event) => {
  if (add(event.clipboardData?.files ?? [])) event.preventDefault();
});
// Without this, a browser opens the file in place of the page.
addEventListener('dragover', (event) => event.preventDefault());
addEventListener('drop', (event) => {
  event.preventDefault();
  add(event.dataTransfer?.files ?? []);
});
