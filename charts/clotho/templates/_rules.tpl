{{/* What the operator asks of the Kubernetes API where runs live, no more: tests compare it with the API server's audit log. */}}
{{- define "clotho.runRules" -}}
- apiGroups: [clotho.dev]
  resources: [trainingruns, inferencetests]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [clotho.dev]
  resources: [environments, trainingpolicies]
  verbs: [get, list, watch]
- apiGroups: [clotho.dev]
  resources: [trainingruns/status, environments/status, inferencetests/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete] # patch: labels and owners that were removed
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete] # delete: of a deleted run that never wrote a checkpoint
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
{{- if .Values.rbac.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch] # the condition PodsReady
{{- end }}
- apiGroups: [""]
  resources: [secrets] # never listed: only those that the operator made, by name
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [configmaps] # never listed: only those that an Environment names, and the run's own for history and logs
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods/log] # the last lines, kept before a pod is deleted
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "clotho.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "clotho.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}
