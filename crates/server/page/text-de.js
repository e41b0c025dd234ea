// The page's texts in German.

export default {
  languageName: 'Deutsch',
  // The frame.
  skip: 'Zum Eingabefeld springen', conversations: 'Gespräche', newChat: 'Neuer Chat', search: 'Gespräche durchsuchen',
  found: { one: '{n} Gespräch gefunden.', other: '{n} Gespräche gefunden.' },
  export: 'Export', exportAll: 'Alle Gespräche als Datei speichern', import: 'Import', importTitle: 'Gespräche aus einer Datei hinzufügen',
  switchTheme: 'Zwischen hell und dunkel wechseln', keyboardShortcuts: 'Tastenkürzel', showConversations: 'Gespräche anzeigen',
  model: 'Modell', settings: 'Einstellungen', conversation: 'Gespräch', done: 'Fertig',
  // The message box.
  message: 'Nachricht', writeMessage: 'Nachricht schreiben', send: 'Senden', stop: 'Stopp',
  pictures: 'Bilder der Nachricht', addPicture: 'Bild hinzufügen', addPictureTitle: 'Bild hinzufügen, auch durch Einfügen oder Ziehen',
  pictureNumber: 'Bild {n}', removePicture: 'Bild {n} entfernen',
  files: 'Textdateien der Nachricht', file: 'Datei', addFile: 'Textdatei hinzufügen', addFileTitle: 'Textdatei hinzufügen, auch durch Einfügen oder Ziehen',
  removeFile: '{name} entfernen', letters: { one: '{n} Zeichen', other: '{n} Zeichen' },
  fileTooLarge: '{name} ist zu groß: höchstens {most} KiB.', filesTooMany: '{name} passt nicht: höchstens {n} Dateien mit zusammen {most} KiB.',
  fileNoText: '{name} ist kein Text in UTF-8.', fileUnreadable: '{name} ist nicht lesbar.',
  // Messages.
  welcome: 'Was kann dieser Rechner für Sie tun?', welcomeText: 'Antworten werden hier berechnet, und Gespräche bleiben in diesem Browser.',
  you: 'Sie', answer: 'Antwort', copy: 'Kopieren', copied: 'Kopiert', copyCode: 'Code kopieren', edit: 'Bearbeiten', editMessage: 'Nachricht bearbeiten', cancel: 'Abbrechen',
  regenerate: 'Neu erzeugen', continue: 'Fortsetzen', timeline: 'Zeitleiste', taskDone: 'Erledigt', taskOpen: 'Offen',
  reasoning: 'Überlegt …', reasoned: 'Überlegung', reasonedFor: '{seconds} s überlegt',
  cutOff: 'Abgeschnitten: Es waren keine Tokens mehr übrig.', stopped: 'Angehalten.',
  tokens: { one: '{n} Token', other: '{n} Tokens' }, rate: '{rate} Tokens/s', promptOf: 'Prompt mit {n}', cached: '{n} im Cache',
  // Calls of tools.
  call: 'Aufruf von', arguments: 'Argumente', result: 'Ergebnis', callAsks: 'wartet auf Ihre Antwort', callRuns: 'läuft', callDeclined: 'abgelehnt', callFailed: 'gescheitert',
  callWithout: 'nicht ausgeführt', callNoJson: 'die Argumente sind kein JSON', askCall: 'Darf der Server {server} das tun?', allow: 'Erlauben', allowAlways: 'Dieses Werkzeug immer erlauben', decline: 'Ablehnen',
  // Conversations.
  title: 'Titel', exportOne: '{title} als Datei speichern', rename: '{title} umbenennen', delete: '{title} löschen', deleteAsk: '„{title}“ löschen?',
  imported: { one: '{n} Gespräch hinzugefügt.', other: '{n} Gespräche hinzugefügt.' },
  importNoJson: 'Die Datei ist kein JSON: erwartet wird eine, die Export geschrieben hat.', importNoConversations: 'Die Datei enthält keine Gespräche von Triad: erwartet wird eine, die Export geschrieben hat.',
  storageFull: 'Dieser Browser hat keinen Platz mehr: Löschen oder exportieren Sie Gespräche.',
  // What happens.
  statusComputing: 'Rechnet …', statusComplete: 'Die Antwort ist vollständig.', statusCutOff: 'Die Antwort ist abgeschnitten.', statusStopped: 'Die Antwort wurde angehalten.',
  statusCalls: 'Das Modell möchte ein Werkzeug nutzen: siehe Ende des Gesprächs.', loading: 'Lädt …',
  unreachable: 'Der Server ist nicht erreichbar. Läuft er noch?', refused: 'Der Server hat mit {status} abgelehnt.',
  // Settings.
  scopeThis: 'Dieses Gespräch', scopeNew: 'Neue Gespräche', systemPrompt: 'Systemprompt', samplingNote: 'Für leere Felder gilt die Empfehlung der Autoren des Modells.',
  temperature: 'Temperatur', topP: 'Top p', topK: 'Top k', minP: 'Min p', maxTokens: 'Tokens höchstens', seed: 'Startwert',
  reasoningChoice: 'Überlegen', reasoningBudget: 'Tokens zum Überlegen höchstens', asModel: 'wie das Modell',
  reasoning_on: 'an', reasoning_off: 'aus', reasoning_low: 'wenig', reasoning_medium: 'mittel', reasoning_high: 'viel',
  useTools: 'Werkzeuge des Servers', toolsNote: 'Vor jedem Aufruf wird gefragt.',
  thisBrowser: 'Dieser Browser', language: 'Sprache', asBrowser: 'wie der Browser', theme: 'Farben', asSystem: 'wie das System', themeLight: 'hell', themeDark: 'dunkel',
  apiKey: 'API-Schlüssel', apiKeyNote: 'falls der Server einen verlangt; bleibt in diesem Browser',
  // Models.
  models: 'Modelle des Servers', inMemory: 'im Speicher', notInMemory: 'nicht im Speicher', load: 'Laden', unload: 'Entladen',
  loadModel: '{name} laden', unloadModel: '{name} entladen', modelsNote: 'Modelle werden auf dem Rechner des Servers geholt: triad pull, dann triad serve -m. Mit --allow-pull holt auch diese Seite sie.',
  pullExample: 'hf:owner/name', pullModel: 'Ein Modell auf den Server laden', pullNote: 'mit seinem Namen bei Hugging Face: hf:owner/name oder hf:owner/name:file', download: 'Herunterladen',
  pullProgress: 'Fortschritt des Downloads', pullBegins: '{name} wird heruntergeladen.', pullAsks: 'Frage nach den Dateien …', pullWaits: 'Ein anderer Prozess lädt dieses Modell herunter.',
  pullFile: '{file}: {done} von {all}', pullDone: '{name} ist da.', pullCancelled: 'Der Download von {name} wurde abgebrochen. Der nächste setzt ihn fort.',
  pullBroken: 'Die Verbindung endete, bevor das Modell vollständig war. Der nächste Download setzt es fort.',
  deleteModel: 'Löschen', deleteModelAsk: '{name} ({size}) vom Rechner des Servers löschen?',
  // Keys.
  keyboard: 'Tastatur', keySend: 'Nachricht senden', keyLine: 'Neue Zeile beginnen', keyStop: 'Antwort anhalten oder Bearbeiten verlassen', keyRegenerate: 'Letzte Antwort neu erzeugen',
  keyEdit: 'Letzte Nachricht bearbeiten', keyHelp: 'Diese Liste, außerhalb eines Textes', keyTimeline: 'Zeitleiste vergrößern, verschieben, zurücksetzen',
  // The timeline.
  timelineTitle: 'Wie der Prompt berechnet wurde', zoomIn: 'Vergrößern', zoomOut: 'Verkleinern', all: 'Alles',
  timelineGone: 'Der Server hat zu dieser Antwort keine Zeitleiste: Er behält nur die neuesten.',
  timelineWork: '{tokens} in {chunks}, {time}', chunks: { one: '{n} Stück', other: '{n} Stücken' }, timelineBusy: '{name} zu {percent} % beschäftigt',
  timelineKeys: 'Scrollen oder + und − vergrößern, Ziehen oder Pfeile verschieben.', timelineTask: '{name}, Stück {n}: {time} ab {start}',
};
