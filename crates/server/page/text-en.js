// The page's texts in English.

export default {
  languageName: 'English',
  // The frame.
  skip: 'Skip to the message box', conversations: 'Conversations', newChat: 'New chat', search: 'Search conversations',
  found: { one: '{n} conversation found.', other: '{n} conversations found.' },
  export: 'Export', exportAll: 'Save all conversations as a file', import: 'Import', importTitle: 'Add conversations from a file',
  switchTheme: 'Switch between light and dark', keyboardShortcuts: 'Keyboard shortcuts', showConversations: 'Show conversations',
  model: 'Model', settings: 'Settings', conversation: 'Conversation', done: 'Done',
  // The message box.
  message: 'Message', writeMessage: 'Write a message', send: 'Send', stop: 'Stop',
  pictures: 'Pictures of the message', addPicture: 'Add a picture', addPictureTitle: 'Add a picture; pasting and dropping one works, too',
  pictureNumber: 'Picture {n}', removePicture: 'Remove picture {n}',
  files: 'Text files of the message', file: 'file', addFile: 'Add a text file', addFileTitle: 'Add a text file; pasting and dropping one works, too',
  removeFile: 'Remove {name}', letters: { one: '{n} letter', other: '{n} letters' },
  fileTooLarge: '{name} is too large: at most {most} KiB.', filesTooMany: '{name} does not fit: at most {n} files of {most} KiB together.',
  fileNoText: '{name} is no text in UTF-8.', fileUnreadable: '{name} can’t be read.',
  // Messages.
  welcome: 'What can this machine do for you?', welcomeText: 'Answers are computed here, and conversations stay in this browser.',
  you: 'You', answer: 'Answer', copy: 'Copy', copied: 'Copied', copyCode: 'Copy the code', edit: 'Edit', editMessage: 'Edit the message', cancel: 'Cancel',
  regenerate: 'Regenerate', continue: 'Continue', timeline: 'Timeline', taskDone: 'Done', taskOpen: 'Not done',
  reasoning: 'Reasoning …', reasoned: 'Reasoning', reasonedFor: 'Reasoned for {seconds} s',
  cutOff: 'Cut off: there were no tokens left.', stopped: 'Stopped.',
  tokens: { one: '{n} token', other: '{n} tokens' }, rate: '{rate} tokens/s', promptOf: 'prompt of {n}', cached: '{n} cached',
  // Calls of tools.
  call: 'Call of', arguments: 'Arguments', result: 'Result', callAsks: 'waits for your answer', callRuns: 'is running', callDeclined: 'was declined', callFailed: 'failed',
  callWithout: 'was not made', callNoJson: 'the arguments are no JSON', askCall: 'Let the server {server} do this?', allow: 'Allow', allowAlways: 'Always allow this tool', decline: 'Decline',
  // Conversations.
  title: 'Title', exportOne: 'Save {title} as a file', rename: 'Rename {title}', delete: 'Delete {title}', deleteAsk: 'Delete “{title}”?',
  imported: { one: '{n} conversation added.', other: '{n} conversations added.' },
  importNoJson: 'The file is no JSON: expected one that Export wrote.', importNoConversations: 'The file has no conversations of Triad: expected one that Export wrote.',
  storageFull: 'This browser has no room left: delete or export conversations.',
  // What happens.
  statusComputing: 'Computing …', statusComplete: 'The answer is complete.', statusCutOff: 'The answer is cut off.', statusStopped: 'The answer was stopped.',
  statusCalls: 'The model asks for a tool: see the end of the conversation.', loading: 'Loading …',
  unreachable: 'The server can’t be reached. Is it still running?', refused: 'The server refused with {status}.',
  // Settings.
  scopeThis: 'This conversation', scopeNew: 'New conversations', systemPrompt: 'System prompt', samplingNote: 'Empty fields are as the model’s authors recommend.',
  temperature: 'Temperature', topP: 'Top p', topK: 'Top k', minP: 'Min p', maxTokens: 'Tokens at most', seed: 'Seed',
  reasoningChoice: 'Reasoning', reasoningBudget: 'Tokens of reasoning at most', asModel: 'as the model does',
  reasoning_on: 'on', reasoning_off: 'off', reasoning_low: 'little', reasoning_medium: 'medium', reasoning_high: 'much',
  useTools: 'Tools of the server', toolsNote: 'Each call is asked for.',
  thisBrowser: 'This browser', language: 'Language', asBrowser: 'as the browser', theme: 'Colours', asSystem: 'as the system', themeLight: 'light', themeDark: 'dark',
  apiKey: 'API key', apiKeyNote: 'where the server wants one; kept in this browser',
  // Models.
  models: 'Models of the server', inMemory: 'in memory', notInMemory: 'not in memory', load: 'Load', unload: 'Unload',
  loadModel: 'Load {name}', unloadModel: 'Unload {name}', modelsNote: 'Models are fetched on the server’s machine: triad pull, then triad serve -m. With --allow-pull, this page fetches them, too.',
  pullExample: 'hf:owner/name', pullModel: 'Download a model to the server', pullNote: 'by its name at Hugging Face: hf:owner/name or hf:owner/name:file', download: 'Download',
  pullProgress: 'Progress of the download', pullBegins: '{name} is being downloaded.', pullAsks: 'Asking for the files …', pullWaits: 'Another process downloads this model.',
  pullFile: '{file}: {done} of {all}', pullDone: '{name} is there.', pullCancelled: 'The download of {name} was cancelled. The next one continues it.',
  pullBroken: 'The connection ended before the model was complete. The next download continues it.',
  deleteModel: 'Delete', deleteModelAsk: 'Delete {name} ({size}) from the server’s machine?',
  // Keys.
  keyboard: 'Keyboard', keySend: 'Send the message', keyLine: 'Begin a new line', keyStop: 'Stop the answer, or leave an edit', keyRegenerate: 'Regenerate the last answer',
  keyEdit: 'Edit the last message', keyHelp: 'This list, outside of a text', keyTimeline: 'Zoom, move and reset a timeline',
  // The timeline.
  timelineTitle: 'How the prompt was computed', zoomIn: 'Zoom in', zoomOut: 'Zoom out', all: 'All',
  timelineGone: 'The server has no timeline of this answer: it keeps the latest ones alone.',
  timelineWork: '{tokens} in {chunks}, {time}', chunks: { one: '{n} chunk', other: '{n} chunks' }, timelineBusy: '{name} {percent} % busy',
  timelineKeys: 'Scroll or + and − zoom, dragging or arrows move.', timelineTask: '{name}, chunk {n}: {time} from {start}',
};
