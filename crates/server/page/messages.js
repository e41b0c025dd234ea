// Renders the messages of a conversation.

import { render } from './markdown.js';
import { shown } from './pictures.js';
import * as timeline from './timeline.js';

const place = document.getElementById('messages');

// Shows all messages. `act` has the handlers of their buttons: `edit` and `regenerate`.
export function show(conversation, act) {
  if (!conversation?.messages.length) {
    const welcome = element('div', 'welcome');
    welcome.append(element('h1', '', 'What can this machine do for you?'));
    welcome.append(element('p', '', 'Answers are computed here, and conversations stay in this browser.'));
    place.replaceChildren(welcome);
    return;
  }
  place.replaceChildren(...conversation.messages.map((message, index) => article(message, index, act)));
  place.scrollTop = place.scrollHeight;
}

// Updates the text of the message that is being streamed, and stays scrolled to the end if it was.
export function write(index, message) {
  const body = place.children[index]?.querySelector('.body');
  if (!body) return;
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 60;
  render(message.content, body);
  body.classList.remove('waiting');
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

// Sets whether screen readers wait until the message is complete.
export function busy(isBusy) {
  place.setAttribute('aria-busy', String(isBusy));
}

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, act) {
  const made = element('button', '', text);
  made.type = 'button';
  made.addEventListener('click', act);
  return made;
}

function article(message, index, act) {
  const made = element('article', `message ${message.role}`);
  const isMine = message.role === 'user';
  made.append(element('h2', '', isMine ? 'You' : message.model ?? 'Answer'));
  const body = element('div', isMine ? 'body' : 'body markdown');
  if (isMine) body.textContent = message.content;
  else render(message.content, body);
  if (message.isWaiting) body.classList.add('waiting');
  if (message.images?.length) {
    const images = element('div', 'images');
    images.append(...message.images.map((url, number) => shown(url, number + 1)));
    made.append(images);
  }
  made.append(body);
  if (message.error) {
    const error = element('p', 'wrong', message.error);
    error.setAttribute('role', 'alert');
    made.append(error);
  }
  if (!message.isWaiting) made.append(tools(message, index, act, made));
  return made;
}

function tools(message, index, act, made) {
  const bar = element('div', 'tools');
  const copy = button('Copy', async () => {
    await navigator.clipboard.writeText(message.content);
    copy.textContent = 'Copied';
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  });
  bar.append(copy);
  if (message.role === 'user') {
    bar.append(button('Edit', () => edit(message, index, act, made)));
    return bar;
  }
  bar.append(button('Regenerate', () => act.regenerate(index)));
  if (message.id) bar.append(button('Timeline', () => timeline.show(message.id)));
  const text = figures(message);
  if (text) bar.append(element('span', 'quiet figures', text));
  return bar;
}

// Returns token counts and speeds: `43 tokens, 120 tokens/s · prompt of 31, 12 cached, 300 tokens/s`.
function figures({ usage, timings, finish }) {
  if (!usage) return '';
  const rate = (value) => (value > 0 ? `, ${value.toPrecision(3)} tokens/s` : '');
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const answer = `${usage.completion_tokens} tokens${rate(timings?.predicted_per_second)}`;
  const prompt = `prompt of ${usage.prompt_tokens}${cached ? `, ${cached} cached` : ''}${rate(timings?.prompt_per_second)}`;
  const end = { length: ' · cut off: no tokens left', stopped: ' · stopped' }[finish] ?? '';
  return `${answer} · ${prompt}${end}`;
}

// Replaces a message by an editor.
export function editAt(index) {
  const buttons = place.children[index]?.querySelectorAll('.tools button') ?? [];
  [...buttons].find((one) => one.textContent === 'Edit')?.click();
}

function edit(message, index, act, made) {
  const area = element('textarea');
  area.value = message.content;
  area.rows = Math.min(message.content.split('\n').length + 1, 12);
  area.setAttribute('aria-label', 'Edit the message');
  const bar = element('div', 'tools');
  const send = () => { if (area.value.trim()) act.edit(index, area.value); };
  bar.append(button('Send', send), button('Cancel', () => act.show()));
  area.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      act.show();
    }
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  made.replaceChildren(made.firstChild, area, bar);
  area.focus();
}
