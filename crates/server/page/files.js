// Text files of the message that is being written: chosen, pasted or dropped.

import { button, classed, element } from './elements.js';
import { t } from './text.js';

const get = (id) => document.getElementById(id);
const [place, input, status] = ['files', 'file-file', 'status'].map(get);
// Bytes of a file and of all together, and files of a message.
const [LARGEST, ALL, MOST] = [256 << 10, 1 << 20, 16];
// Letters of a preview, and of a name.
const [SHOWN, NAME] = [4000, 120];

let files = [];

// Returns the files, and begins with none.
export function take() {
  const taken = files;
  put([]);
  return taken;
}

// Replaces the files.
export function put(others) {
  files = [...others];
  place.hidden = !files.length;
  place.replaceChildren(...files.map(item));
}

// Returns an element with a file that opens.
export function shown({ name, text }) {
  const size = t('letters', { n: text.length });
  const beginning = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
  return classed('details', 'file', element('summary', name, ' ', classed('span', 'quiet', size)), element('pre', beginning));
}

// Returns a text with its files in front, as the model reads it: a fence is longer than any in its file.
export function withFiles(text, some = []) {
  const fenced = some.map((file) => {
    let longest = 2;
    for (const [run] of file.text.matchAll(/`+/g)) longest = Math.max(longest, run.length);
    const fence = '`'.repeat(longest + 1);
    return `${file.name}\n${fence}\n${file.text}${file.text.endsWith('\n') ? '' : '\n'}${fence}\n\n`;
  });
  return fenced.join('') + text;
}

function item(file, index) {
  const remove = button('×', () => put(files.filter((_, one) => one !== index)));
  remove.setAttribute('aria-label', t('removeFile', { name: file.name }));
  return element('li', shown(file), remove);
}

// Adds the files that are no pictures; returns whether there were some.
function add(given) {
  const found = [...given].filter((file) => !file.type.startsWith('image/'));
  readAll(found);
  return found.length > 0;
}

async function readAll(found) {
  for (const file of found) {
    const name = file.name.replace(/[\p{Cc}\p{Cf}]/gu, '').slice(0, NAME) || t('file');
    try {
      await read(name, file);
    } catch (error) {
      status.textContent = error.message;
      return;
    }
  }
}

async function read(name, file) {
  const bytes = files.reduce((sum, one) => sum + one.text.length, file.size);
  if (file.size > LARGEST) throw new Error(t('fileTooLarge', { name, most: LARGEST >> 10 }));
  if (files.length >= MOST || bytes > ALL) throw new Error(t('filesTooMany', { name, n: MOST, most: ALL >> 10 }));
  const content = await file.arrayBuffer().catch(() => { throw new Error(t('fileUnreadable', { name })); });
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(content);
  } catch {
    throw new Error(t('fileNoText', { name }));
  }
  if (text.includes('\0')) throw new Error(t('fileNoText', { name }));
  put([...files, { name, text: text.replaceAll('\r\n', '\n') }]);
}

get('file').addEventListener('click', () => input.click());
input.addEventListener('change', () => {
  add(input.files);
  input.value = '';
});
get('prompt').addEventListener('paste', (event) => {
  if (add(event.clipboardData?.files ?? [])) event.preventDefault();
});
addEventListener('drop', (event) => add(event.dataTransfer?.files ?? []));
