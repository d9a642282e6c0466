setup() {

# The tenant, and the subscription by its id: the one that az is set to if none is named above.
TENANT=$(az account show ${SUBSCRIPTION:+--subscription "$SUBSCRIPTION"} --query tenantId --output tsv)
SUBSCRIPTION=$(az account show ${SUBSCRIPTION:+--subscription "$SUBSCRIPTION"} --query id --output tsv)

# Whether Azure refuses writes to the node resource group.
LOCK=$(az aks show --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query nodeResourceGroupProfile.restrictionLevel --output tsv)
if [ "$LOCK" = ReadOnly ]; then
  echo 'The node resource group is locked, as in AKS Automatic: Azure refuses admin states whatever the role. Use the profile healthz.' >&2
  exit 1
fi

# What the entries of its backend pools are.
POOLS=$(az aks show --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query networkProfile.loadBalancerProfile.backendPoolType --output tsv)
if [ "$POOLS" = podIP ]; then
  echo 'The backend pools have the addresses of pods, for which headgate has no admin states. Use the profile healthz.' >&2
  exit 1
fi

# Where its load balancers are, and the subnet of its nodes if it is your own.
NODE_GROUP=$(az aks show --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query nodeResourceGroup --output tsv)
SUBNET=$(az aks show --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query 'agentPoolProfiles[0].vnetSubnetId' --output tsv)

# The issuer of its ServiceAccounts' tokens.
ISSUER=$(az aks show --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query oidcIssuerProfile.issuerUrl --output tsv)

# Issues tokens for other systems. This restarts the API server where it was off.
if [ -z "$ISSUER" ]; then
  ISSUER=$(az aks update --enable-oidc-issuer --resource-group "$GROUP" --name "$CLUSTER" --subscription "$SUBSCRIPTION" \
    --query oidcIssuerProfile.issuerUrl --output tsv)
fi

# The identity. An existing one is kept.
PRINCIPAL=$(az identity create --resource-group "$GROUP" --name "$IDENTITY" --subscription "$SUBSCRIPTION" \
    --query principalId --output tsv)
CLIENT=$(az identity show --resource-group "$GROUP" --name "$IDENTITY" --subscription "$SUBSCRIPTION" --query clientId \
    --output tsv)

# Whose token proves it: that of the ServiceAccount of the chart's controllers.
az identity federated-credential create --resource-group "$GROUP" --identity-name "$IDENTITY" \
    --subscription "$SUBSCRIPTION" --name "headgate-$CLUSTER" --audiences api://AzureADTokenExchange \
    --subject "system:serviceaccount:${NAMESPACE}:headgate-controller" --issuer "$ISSUER" --output none

# The role. An existing one is kept: `headgate check` names the actions that it lacks.
ROLE=$(az role definition list --custom-role-only true --name "headgate-$SUBSCRIPTION" \
    --scope "/subscriptions/$SUBSCRIPTION" --subscription "$SUBSCRIPTION" --query '[0].id' --output tsv)
if [ -z "$ROLE" ]; then
  ROLE=$(az role definition create --subscription "$SUBSCRIPTION" \
    --role-definition ROLE_DEFINITION \
    --query id --output tsv)
fi

# The identity has it on the node resource group.
az role assignment create --assignee-principal-type ServicePrincipal --assignee-object-id "$PRINCIPAL" \
    --role "$ROLE" --scope "/subscriptions/$SUBSCRIPTION/resourceGroups/$NODE_GROUP" \
    --subscription "$SUBSCRIPTION" --output none

# The same on your own virtual network, which a write of such a pool names.
if [ -n "$SUBNET" ] && [ "$POOLS" = nodeIP ]; then
  az role assignment create --assignee-principal-type ServicePrincipal --assignee-object-id "$PRINCIPAL" \
    --role "$ROLE" --scope "${SUBNET%%/subnets/*}" --subscription "$SUBSCRIPTION" --output none
fi

# The values for the chart. IMAGE is a string of JSON, which is one of YAML.
cat >"$VALUES" <<END_OF_VALUES
# Written by headgate azure-setup.
profile: aks
${IMAGE:+image:
  repository: $IMAGE
}azure:
  tenantId: "${TENANT}"
  subscriptionId: "${SUBSCRIPTION}"
  resourceGroup: "${NODE_GROUP}"
  clientId: "${CLIENT}"
  config:
    loadBalancerBackendPoolConfigurationType: "${POOLS}"
END_OF_VALUES
}
# Called once it is read to its end, so that no command reads the rest of a script that is piped into sh.
setup </dev/null
