-- Health of a TrainingRun for Argo CD. Put it into argocd-cm under
-- resource.customizations.health.clotho.dev_TrainingRun; docs/operations.md shows how.
local health = {status = "Progressing", message = "Waiting for the operator."}
local status = obj.status
if status == nil or status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition.status
end

health.message = status.message or status.phase
if status.phase == "Failed" or conditions["Stalled"] == "True" or conditions["Accepted"] == "False" then
  health.status = "Degraded"
elseif status.phase == "Suspended" or status.phase == "Stopped" then
  health.status = "Suspended"
elseif status.phase == "Completed" or (status.phase == "Running" and conditions["Ready"] == "True") then
  health.status = "Healthy"
end
return health
