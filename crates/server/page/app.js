// The page: conversations, the message box and shortcuts.

import * as answers from './answer.js';
import * as dialog from './settings.js';
import * as files from './files.js';
import * as messages from './messages.js';
import * as models from './models.js';
import * as pictures from './pictures.js';
import * as sidebar from './sidebar.js';
import { conversations, create, save, settings } from './store.js';
import { choose, t } from './text.js';
import * as tools from './tools.js';

const get = (id) => document.getElementById(id);
const [prompt, send, stop, status, shortcuts, menu, aside] = ['prompt', 'send', 'stop', 'status', 'shortcuts', 'menu', 'sidebar'].map(get);
// Maximum length of titles.
const TITLE = 48;

let current = conversations[0] ?? null;
// Aborts the response that is being streamed.
let running = null;

const actions = {
  show,
  regenerate: (index) => answerAgain(index),
  continue: (index) => continueAnswer(index),
  edit: (index, text) => {
    if (running) return;
    const [{ images, files: some }] = current.messages.splice(index);
    ask(text, images, some);
  },
  consent: tools.consent,
};

function show() {
  sidebar.show(current);
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
  if (!save()) say(t('storageFull'));
}

// Sends a message, with the URLs of its pictures and its text files. Starts a conversation if none is open.
function ask(text, images = [], some = []) {
  if (running || !(text.trim() || images.length || some.length)) return;
  current ??= create();
  if (!current.messages.length) {
    const line = text.trim().split('\n')[0] || (some[0]?.name ?? t('pictureNumber', { n: 1 }));
    current.title = line.length > TITLE ? `${line.slice(0, TITLE)}…` : line;
  }
  current.messages.push({ role: 'user', content: text, ...(images.length ? { images } : {}), ...(some.length ? { files: some } : {}) });
  answer();
}

function answerAgain(index) {
  if (running) return;
  current.messages.splice(index);
  answer();
}

function continueAnswer(index) {
  if (running) return;
  current.messages.splice(index + 1);
  answer(true);
}

// Answers a conversation: by one message, or by several with calls of tools between them.
async function answer(isContinued = false) {
  const conversation = current;
  const abort = new AbortController();
  running = { abort, conversation };
  setRunning(true);
  let message = null;
  try {
    for (let round = 0; round <= tools.ROUNDS; round += 1) {
      const offered = round < tools.ROUNDS ? tools.used(conversation) : [];
      message = await answerOnce(conversation, abort.signal, offered, isContinued && !round);
      if (message.finish !== 'tool_calls' || !offered.length || !(await call(conversation, message, abort.signal))) break;
    }
  } finally {
    running = null;
    setRunning(false);
    if (message && current === conversation) messages.replace(conversation.messages.length - 1, message, actions);
    sidebar.show(current);
    say(message && !message.error ? t({ length: 'statusCutOff', stopped: 'statusStopped' }[message.finish] ?? 'statusComplete') : '');
    keep();
  }
}

async function answerOnce(conversation, signal, offered, isContinued) {
  const model = get('model').value;
  const body = answers.request(conversation, model, { tools: offered, isContinued });
  if (!isContinued) conversation.messages.push({ role: 'assistant', content: '', model });
  const index = conversation.messages.length - 1;
  const message = conversation.messages[index];
  const before = isContinued ? message.usage?.completion_tokens ?? 0 : 0;
  message.isWaiting = true;
  for (const name of ['id', 'finish', 'error', 'usage']) delete message[name];
  show();
  let drawn = 0;
  const status = await answers.receive(body, message, signal, () => {
    // Render at most once per frame.
    drawn ||= requestAnimationFrame(() => {
      drawn = 0;
      if (current === conversation) messages.write(index, message);
    });
  });
  cancelAnimationFrame(drawn);
  if (message.usage) message.usage.completion_tokens += before;
  if (status === 401) dialog.askForKey();
  return message;
}

// Makes the calls of the last message; returns whether the model may go on.
async function call(conversation, message, signal) {
  const index = conversation.messages.indexOf(message);
  const changed = () => { if (current === conversation) messages.replace(index, message, actions); };
  changed();
  say(t('statusCalls'));
  return tools.run(conversation, message, signal, changed);
}

function setRunning(isRunning) {
  send.hidden = isRunning;
  stop.hidden = !isRunning;
  messages.busy(isRunning);
  if (isRunning) say(t('statusComputing'));
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
  ask(text, pictures.take(), files.take());
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
  KeyF: () => get('search').focus(),
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

choose(settings.language);
models.start({ changed: dialog.listModels });
sidebar.start({ open, say, keep });
dialog.start({
  say,
  show,
  conversation: () => current,
  kept: () => {
    keep();
    sidebar.show(current);
  },
});
show();
grow();
prompt.focus();
