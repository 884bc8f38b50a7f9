-- The view for people leaves out what breakdowns hold: their events are in their counters already.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_daily AS
SELECT counter,
       CAST(bucket AS DATE) AS day,
       counter_key,
       SUM(amount) AS total
FROM counter_slot
WHERE counter NOT LIKE '%#%'
GROUP BY counter, CAST(bucket AS DATE), counter_key;
