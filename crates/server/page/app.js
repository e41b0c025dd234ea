// The page: conversations, the message box, settings and shortcuts.

import * as api from './api.js';
import * as messages from './messages.js';
import * as pictures from './pictures.js';
import * as sidebar from './sidebar.js';
import { conversations, create, exported, imported, save, saveSettings, settings } from './store.js';

const get = (id) => document.getElementById(id);
const [prompt, send, stop, model, status] = ['prompt', 'send', 'stop', 'model', 'status'].map(get);
const [settingsDialog, shortcuts, menu, aside] = ['settings', 'shortcuts', 'menu', 'sidebar'].map(get);
// Maximum length of titles.
const TITLE = 48;

let current = conversations[0] ?? null;
// Aborts the response that is being streamed.
let running = null;

const actions = {
  show,
  regenerate: (index) => answerAgain(index),
  edit: (index, text) => {
    if (running) return;
    const [{ images }] = current.messages.splice(index);
    ask(text, images);
  },
};

function show() {
  sidebar.show(current, open);
  messages.show(current, actions);
}

function say(text) {
  status.textContent = text;
}

function open(conversation) {
  stopAnswer();
  current = conversation;
  closeMenu();
  show();
  prompt.focus();
}

function keep() {
  if (!save()) say('This browser has no room left: delete or export conversations.');
}

// Sends a message, with the URLs of its pictures. Starts a conversation if none is open.
function ask(text, images = []) {
  if (running || !(text.trim() || images.length)) return;
  current ??= create();
  if (!current.messages.length) {
    const line = text.trim().split('\n')[0] || 'Picture';
    current.title = line.length > TITLE ? `${line.slice(0, TITLE)}…` : line;
  }
  current.messages.push({ role: 'user', content: text, ...(images.length ? { images } : {}) });
  answer();
}

// Returns a message as the server reads it.
function parts({ role, content, images }) {
  if (!images?.length) return { role, content };
  const shown = images.map((url) => ({ type: 'image_url', image_url: { url } }));
  const said = content.trim() ? [{ type: 'text', text: content }] : [];
  return { role, content: [...shown, ...said] };
}

function answerAgain(index) {
  if (running) return;
  current.messages.splice(index);
  answer();
}

async function answer() {
  const conversation = current;
  const sent = conversation.messages.filter((one) => !one.error || one.content).map(parts);
  if (conversation.system.trim()) sent.unshift({ role: 'system', content: conversation.system });
  const message = { role: 'assistant', content: '', model: model.value, isWaiting: true };
  const index = conversation.messages.push(message) - 1;
  const abort = new AbortController();
  running = { abort, conversation };
  setRunning(true);
  show();
  let drawn = 0;
  try {
    const body = { model: model.value || undefined, messages: sent, ...settings.sampling };
    for await (const part of api.chat(body, abort.signal)) {
      message.id ??= part.id;
      if (part.usage) message.usage = part.usage;
      if (part.timings) message.timings = part.timings;
      const choice = part.choices?.[0];
      if (choice?.finish_reason) message.finish = choice.finish_reason;
      if (!choice?.delta?.content) continue;
      message.content += choice.delta.content;
      // Render at most once per frame.
      if (!drawn) {
        drawn = requestAnimationFrame(() => {
          drawn = 0;
          if (current === conversation) messages.write(index, message);
        });
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') message.finish = 'stopped';
    else message.error = error.message;
    if (error.status === 401) settingsDialog.showModal();
  } finally {
    cancelAnimationFrame(drawn);
    delete message.isWaiting;
    running = null;
    setRunning(false);
    keep();
    if (current === conversation) show();
    else sidebar.show(current, open);
    say(message.error ? '' : 'The answer is complete.');
  }
}

function setRunning(isRunning) {
  send.hidden = isRunning;
  stop.hidden = !isRunning;
  messages.busy(isRunning);
  if (isRunning) say('Computing …');
}

function stopAnswer() {
  running?.abort.abort();
}

function grow() {
  prompt.style.height = 'auto';
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

get('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) return;
  const text = prompt.value;
  prompt.value = '';
  grow();
  ask(text, pictures.take());
});
prompt.addEventListener('input', grow);
prompt.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    get('composer').requestSubmit();
  }
});
stop.addEventListener('click', stopAnswer);
get('new').addEventListener('click', () => open(null));

// Export and import of conversations.

get('export').addEventListener('click', () => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([exported()], { type: 'application/json' }));
  link.download = 'triad-conversations.json';
  link.click();
  URL.revokeObjectURL(link.href);
});
get('import').addEventListener('click', () => get('import-file').click());
get('import-file').addEventListener('change', async ({ target }) => {
  const [file] = target.files;
  target.value = '';
  if (!file) return;
  try {
    const count = imported(await file.text());
    say(`${count} conversations added.`);
    open(conversations[0] ?? null);
  } catch (error) {
    say(error.message);
  }
});

// Settings.

function readSettings() {
  get('system').value = current?.system ?? '';
  get('key').value = settings.key ?? '';
  for (const input of document.querySelectorAll('[data-number]')) input.value = settings.sampling[input.dataset.number] ?? '';
}

settingsDialog.addEventListener('close', () => {
  const system = get('system').value;
  if (current || system.trim()) {
    current ??= create();
    current.system = system;
    keep();
    sidebar.show(current, open);
  }
  settings.key = get('key').value.trim() || undefined;
  settings.sampling = {};
  for (const input of document.querySelectorAll('[data-number]')) {
    if (input.value !== '' && input.validity.valid) settings.sampling[input.dataset.number] = Number(input.value);
  }
  saveSettings();
  listModels();
});
get('settings-open').addEventListener('click', () => {
  readSettings();
  settingsDialog.showModal();
});
model.addEventListener('change', () => {
  settings.model = model.value;
  saveSettings();
});

async function listModels() {
  try {
    const names = await api.models();
    model.replaceChildren(...names.map((name) => new Option(name, name, false, name === settings.model)));
    say('');
  } catch (error) {
    say(error.message);
    if (error.status === 401 && !settingsDialog.open) {
      readSettings();
      settingsDialog.showModal();
    }
  }
}

// Light and dark theme.

const prefersDark = matchMedia('(prefers-color-scheme: dark)');

function showTheme() {
  document.documentElement.dataset.theme = settings.theme ?? (prefersDark.matches ? 'dark' : 'light');
}

get('theme').addEventListener('click', () => {
  settings.theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  saveSettings();
  showTheme();
});
prefersDark.addEventListener('change', showTheme);

// The sidebar on a narrow screen.

function closeMenu() {
  aside.classList.remove('open');
  menu.setAttribute('aria-expanded', 'false');
}

menu.addEventListener('click', () => {
  const isOpen = aside.classList.toggle('open');
  menu.setAttribute('aria-expanded', String(isOpen));
  if (isOpen) get('new').focus();
});
get('messages').addEventListener('click', closeMenu);

// Keyboard shortcuts.

get('help').addEventListener('click', () => shortcuts.showModal());

function last(role) {
  return current?.messages.findLastIndex((one) => one.role === role) ?? -1;
}

const SHORTCUTS = {
  KeyN: () => open(null),
  KeyR: () => { if (last('assistant') >= 0) answerAgain(last('assistant')); },
  KeyE: () => { if (!running && last('user') >= 0) messages.editAt(last('user')); },
  KeyS: () => get('settings-open').click(),
};

addEventListener('keydown', (event) => {
  if (document.querySelector('dialog[open]')) return;
  if (event.altKey && SHORTCUTS[event.code]) {
    event.preventDefault();
    SHORTCUTS[event.code]();
  } else if (event.key === 'Escape') {
    stopAnswer();
    closeMenu();
  } else if (event.key === '?' && !event.target.matches('input, textarea, select')) {
    shortcuts.showModal();
  }
});

showTheme();
show();
grow();
listModels();
prompt.focus();
