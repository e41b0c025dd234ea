// The list of conversations.

import { conversations, remove, save } from './store.js';

const list = document.getElementById('conversations');

// Shows the conversations. Calls `open` with the selected one, or with none if the current one is deleted.
export function show(current, open) {
  list.replaceChildren(...conversations.map((one) => row(one, current, open)));
}

function button(label, text, act) {
  const made = document.createElement('button');
  made.type = 'button';
  made.textContent = text;
  made.setAttribute('aria-label', label);
  made.addEventListener('click', act);
  return made;
}

function row(one, current, open) {
  const made = document.createElement('li');
  const title = button(one.title, one.title, () => open(one));
  title.className = 'open';
  title.title = one.title;
  if (one === current) {
    made.className = 'current';
    title.setAttribute('aria-current', 'true');
  }
  const rename = button(`Rename ${one.title}`, '✎', () => edit(made, one, () => show(current, open)));
  const discard = button(`Delete ${one.title}`, '✕', () => {
    if (!confirm(`Delete “${one.title}”?`)) return;
    remove(one);
    if (one === current) open(null);
    else show(current, open);
  });
  rename.className = discard.className = 'act';
  made.append(title, rename, discard);
  return made;
}

function edit(place, one, done) {
  const input = document.createElement('input');
  input.value = one.title;
  input.setAttribute('aria-label', 'Title');
  let isOver = false;
  const end = (keeps) => {
    if (isOver) return;
    isOver = true;
    if (keeps && input.value.trim()) {
      one.title = input.value.trim();
      save();
    }
    done();
  };
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') end(true);
    if (event.key === 'Escape') end(false);
  });
  input.addEventListener('blur', () => end(true));
  place.replaceChildren(input);
  input.select();
}
