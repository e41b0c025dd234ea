// The list of conversations: search, titles, files.

import { button } from './elements.js';
import { conversations, exported, imported, remove } from './store.js';
import { t } from './text.js';

const get = (id) => document.getElementById(id);
const [list, search] = ['conversations', 'search'].map(get);
let shown = null;
let actions;

// Lets the buttons act: `open` opens a conversation, or none; `say` tells the user something.
export function start(given) {
  actions = given;
  search.addEventListener('input', () => {
    show(shown);
    const { length } = found();
    actions.say(search.value.trim() ? t('found', { n: length }) : '');
  });
  search.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !search.value) return;
    event.stopPropagation();
    search.value = '';
    show(shown);
  });
  get('export').addEventListener('click', () => download('triad-conversations.json', exported()));
  get('import').addEventListener('click', () => get('import-file').click());
  get('import-file').addEventListener('change', take);
}

// Shows the conversations that are searched for.
export function show(current) {
  shown = current;
  list.replaceChildren(...found().map(row));
}

// Returns the conversations with all searched words in their titles, messages or files.
function found() {
  const words = search.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return conversations;
  return conversations.filter(({ title, messages }) => {
    const parts = messages.flatMap(({ content, files = [] }) => [content, ...files.map((one) => `${one.name} ${one.text}`)]);
    const text = [title, ...parts].join('\n').toLocaleLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function row(one) {
  const made = document.createElement('li');
  const title = button(one.title, () => actions.open(one));
  title.className = 'open';
  title.title = one.title;
  if (one === shown) {
    made.className = 'current';
    title.setAttribute('aria-current', 'true');
  }
  const save = act('↓', 'exportOne', one, () => download('triad-conversation.json', exported([one])));
  const rename = act('✎', 'rename', one, () => edit(made, one));
  const discard = act('✕', 'delete', one, () => {
    if (!confirm(t('deleteAsk', { title: one.title }))) return;
    remove(one);
    if (one === shown) actions.open(null);
    else show(shown);
  });
  made.append(title, save, rename, discard);
  return made;
}

function act(sign, name, { title }, handler) {
  const made = button(sign, handler);
  made.className = 'act';
  made.title = t(name, { title });
  made.setAttribute('aria-label', made.title);
  return made;
}

function edit(place, one) {
  const input = document.createElement('input');
  input.value = one.title;
  input.setAttribute('aria-label', t('title'));
  let isOver = false;
  const end = (keeps) => {
    if (isOver) return;
    isOver = true;
    if (keeps && input.value.trim()) {
      one.title = input.value.trim();
      actions.keep();
    }
    show(shown);
  };
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') end(true);
    if (event.key === 'Escape') end(false);
  });
  input.addEventListener('blur', () => end(true));
  place.replaceChildren(input);
  input.select();
}

function download(name, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function take({ target }) {
  const [file] = target.files;
  target.value = '';
  if (!file) return;
  try {
    const n = imported(await file.text());
    search.value = '';
    actions.open(conversations[0] ?? null);
    actions.say(t('imported', { n }));
    actions.keep();
  } catch (error) {
    actions.say(error.message);
  }
}
