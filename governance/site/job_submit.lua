-- Slurm's submit filter for governed partitions: refuses jobs that would get around them.
-- JobSubmitPlugins=lua in slurm.conf; this file beside it as job_submit.lua (or merged into yours).
--
-- A partition below takes jobs of its accounts only, and every job there asks for its features.
-- hpcdet asks for them by itself (governance.capabilities of the site file); this keeps out jobs
-- that others write by hand. It does not replace AllowAccounts, AllowGroups, mounts or firewalls.

local GOVERNED = {
   phi = {accounts = {lab_phi = true}, features = {"gov_phi"}},
}

local function has_feature(asked, feature)
   -- whole names: gov_phi is not gov_phi2
   for name in string.gmatch(asked or "", "[^&()]+") do
      if name == feature then return true end
   end
   return false
end

local function why_not(job)
   for partition in string.gmatch(job.partition or "", "[^,]+") do
      local rule = GOVERNED[partition]
      if rule ~= nil then
         if not rule.accounts[job.account or ""] then
            return "partition " .. partition .. " takes no jobs of account " .. (job.account or "none")
         end
         if string.find(job.features or "", "[|%[%]*,]") and
            not string.match(job.features, "^%([^()]*%)&[^|%[%]*,()]+$") then
            return "constraint " .. job.features .. ": alternatives belong in parentheses, before &"
         end
         for _, feature in ipairs(rule.features) do
            local last = string.match(job.features or "", "%)&(.*)$") or job.features
            if not has_feature(last, feature) then
               return "partition " .. partition .. " needs --constraint=" .. feature
            end
         end
      end
   end
   return nil
end

function slurm_job_submit(job, partitions, uid)
   local refused = why_not(job)
   if refused ~= nil then
      slurm.log_user("%s", refused)
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

function slurm_job_modify(change, job, partitions, uid)
   -- what scontrol update would leave; nil: not changed
   local after = {
      partition = change.partition or job.partition,
      account = change.account or job.account,
      features = change.features or job.features,
   }
   local refused = why_not(after)
   if refused ~= nil then
      slurm.log_user("%s", refused)
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

return slurm.SUCCESS
