// Makes elements. Texts only become text nodes.

import { t } from './text.js';

const MILLISECONDS = 1500;

export function element(name, ...children) {
  return fill(document.createElement(name), children);
}

// Puts `children` at the end of `place`, one by one: a call has room for some ten thousand arguments.
export function fill(place, children) {
  for (const child of children) place.append(child);
  return place;
}

// Returns an element of a class.
export function classed(name, kind, ...children) {
  const made = element(name, ...children);
  made.className = kind;
  return made;
}

export function button(text, act) {
  const made = element('button', text);
  made.type = 'button';
  made.addEventListener('click', act);
  return made;
}

// Returns a button that copies a text.
export function copying(text) {
  const made = button(t('copy'), async () => {
    await navigator.clipboard.writeText(text);
    made.textContent = t('copied');
    setTimeout(() => { made.textContent = t('copy'); }, MILLISECONDS);
  });
  return made;
}
