// Conversations and settings in the browser's storage.

import { t } from './text.js';

const CONVERSATIONS = 'triad.conversations';
const SETTINGS = 'triad.settings';
// Settings that the server reads as numbers.
const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'reasoning_budget'];
// How much a model reasons: the fields that ask for it.
export const REASONING = {
  on: { enable_thinking: true }, off: { enable_thinking: false },
  low: { reasoning_effort: 'low' }, medium: { reasoning_effort: 'medium' }, high: { reasoning_effort: 'high' },
};

// The fields of a message that may be missing, and what they are.
const FIELDS = {
  model: isText, id: isText, error: isText, finish: isText, reasoning: isText, seconds: isNumber,
  images: isList((url) => isText(url) && url.startsWith('data:image/')),
  files: isList((one) => isText(one?.name) && isText(one.text)),
  calls: isList((one) => [one?.id, one?.name, one?.arguments].every(isText) && isText(one.result ?? '')),
  usage: (one) => isNumber(one?.completion_tokens) && isNumber(one.prompt_tokens),
  timings: (one) => [one?.predicted_per_second ?? 0, one?.prompt_per_second ?? 0].every(isNumber),
};

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

// The settings: model, key, theme and language, and of conversations that begin: system prompt, sampling,
// reasoning and tools.
export const settings = read(SETTINGS, {});
settings.system = isText(settings.system) ? settings.system : '';
settings.sampling = numbers(settings.sampling);

export function saveSettings() {
  keep(SETTINGS, settings);
}

// The conversations, the latest first.
export const conversations = checked(read(CONVERSATIONS, []));

// Returns whether the storage had enough space. If not, the oldest conversations are kept without pictures and without the
// texts of files, as many as need be.
export function save() {
  if (keep(CONVERSATIONS, conversations)) return true;
  for (let bare = 1; bare < 2 * conversations.length; bare *= 2) {
    if (keep(CONVERSATIONS, conversations.map((one, index) => (index < conversations.length - bare ? one : withoutParts(one))))) break;
  }
  return false;
}

function withoutParts({ messages, ...rest }) {
  const named = (files) => files?.map(({ name }) => ({ name, text: '' }));
  return { ...rest, messages: messages.map(({ images, files, ...one }) => ({ ...one, files: named(files) })) };
}

// Returns whether the storage had enough space.
function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function create() {
  const { system, sampling, reasoning, hasTools } = settings;
  const made = { id: crypto.randomUUID(), title: t('newChat'), system, sampling: { ...sampling }, reasoning, hasTools, messages: [] };
  conversations.unshift(made);
  return made;
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  save();
}

// Serializes conversations to the text of a file, by default all.
export function exported(some = conversations) {
  return JSON.stringify({ triad: 1, conversations: some }, null, 2);
}

// Adds the conversations of a file and returns their number. Throws an error message if the text is invalid.
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error(t('importNoJson'));
  }
  if (file?.triad !== 1 || !Array.isArray(file.conversations)) throw new Error(t('importNoConversations'));
  // The user decides here, not in a file, whether a conversation has tools.
  const added = checked(file.conversations).map((one) => ({ ...one, id: crypto.randomUUID(), hasTools: undefined }));
  conversations.unshift(...added);
  save();
  return added.length;
}

// Returns the valid conversations of a list, with the fields that this page knows.
function checked(list) {
  const isOne = (one) => isText(one?.title) && Array.isArray(one.messages) && one.messages.every(isMessage);
  const whole = (one) => ({
    id: isText(one.id) ? one.id : crypto.randomUUID(),
    title: one.title,
    system: isText(one.system) ? one.system : '',
    sampling: numbers(one.sampling ?? settings.sampling),
    reasoning: Object.hasOwn(REASONING, one.reasoning) ? one.reasoning : undefined,
    hasTools: one.hasTools === true || undefined,
    messages: one.messages.map(known),
  });
  return (Array.isArray(list) ? list : []).filter(isOne).map(whole);
}


function isText(one) {
  return typeof one === 'string';
}

function isNumber(one) {
  return Number.isFinite(one);
}

function isList(isIt) {
  return (list) => Array.isArray(list) && list.every(isIt);
}

function isMessage(one) {
  return ['user', 'assistant'].includes(one?.role) && isText(one.content) && (one.images === undefined || FIELDS.images(one.images));
}

function known(message) {
  const found = Object.entries(FIELDS).filter(([name, isIt]) => message[name] !== undefined && isIt(message[name]));
  const one = { role: message.role, content: message.content, ...Object.fromEntries(found.map(([name]) => [name, message[name]])) };
  // Without what a page that was closed was waiting for.
  const ended = ({ id, name, arguments: given, result, state }) => ({ id, name, arguments: given, result, state: ['failed', 'declined'].find((it) => it === state) });
  if (one.calls) one.calls = one.calls.map(ended);
  return one;
}

function numbers(values) {
  return Object.fromEntries(NUMBERS.filter((name) => isNumber(values?.[name])).map((name) => [name, values[name]]));
}
