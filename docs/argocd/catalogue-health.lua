-- Health of an Environment or an InferenceTest for Argo CD. Put it into argocd-cm under
-- resource.customizations.health.clotho.dev_Environment and ..._InferenceTest; docs/operations.md shows how.
local health = {status = "Progressing", message = "Waiting for the operator."}
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end

health.message = status.message
for _, condition in ipairs(status.conditions) do
  if condition.type == "Stalled" and condition.status == "True" then
    health.status = "Degraded"
  elseif condition.type == "Ready" and condition.status == "True" then
    health.status = "Healthy"
  end
end
return health
