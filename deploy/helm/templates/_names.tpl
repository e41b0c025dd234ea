{{- define "triad.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "triad.selector" -}}
app.kubernetes.io/name: triad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "triad.labels" -}}
{{ include "triad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
