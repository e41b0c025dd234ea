// Conversations and settings in the browser's storage.

const CONVERSATIONS = 'triad.conversations';
const SETTINGS = 'triad.settings';

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

// The settings: model, sampling, key and theme.
export const settings = { sampling: {}, ...read(SETTINGS, {}) };

export function saveSettings() {
  keep(SETTINGS, settings);
}

// The conversations, the latest first.
export const conversations = checked(read(CONVERSATIONS, []));

// Returns whether the storage had enough space, if need be without pictures.
export function save() {
  const withoutPictures = ({ messages, ...rest }) => ({ ...rest, messages: messages.map(({ images, ...one }) => one) });
  return keep(CONVERSATIONS, conversations) || keep(CONVERSATIONS, conversations.map(withoutPictures));
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
  const made = { id: crypto.randomUUID(), title: 'New chat', system: '', messages: [] };
  conversations.unshift(made);
  return made;
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  save();
}

// Serializes all conversations to the text of a file.
export function exported() {
  return JSON.stringify({ triad: 1, conversations }, null, 2);
}

// Adds the conversations of a file and returns their number. Throws an error message if the text is invalid.
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error('The file is no JSON: expected one that Export wrote.');
  }
  if (file?.triad !== 1 || !Array.isArray(file.conversations)) {
    throw new Error('The file has no conversations of Triad: expected one that Export wrote.');
  }
  const added = checked(file.conversations).map((one) => ({ ...one, id: crypto.randomUUID() }));
  conversations.unshift(...added);
  save();
  return added.length;
}

// Returns the valid conversations of a list.
function checked(list) {
  const isPicture = (url) => typeof url === 'string' && url.startsWith('data:image/');
  const hasPictures = (one) => one.images === undefined || (Array.isArray(one.images) && one.images.every(isPicture));
  const isMessage = (one) => ['user', 'assistant'].includes(one?.role) && typeof one.content === 'string' && hasPictures(one);
  const isOne = (one) => typeof one?.title === 'string' && Array.isArray(one.messages) && one.messages.every(isMessage);
  const whole = (one) => ({ id: crypto.randomUUID(), system: '', ...one });
  return (Array.isArray(list) ? list : []).filter(isOne).map(whole);
}
